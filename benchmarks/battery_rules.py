"""Rules for the peers' verdicts and for correct verdicts, fixed before the battery was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scipy import stats

from benchmarks.battery_releases import PASS, REFUSED, Entry

LEAK, NOTHING, NO_VERDICT = "leak", "no leak", "no verdict"
LEVEL = 0.05
Line = dict[str, Any]  # "release", "tool" and results


def anonymeter_verdict(estimates: Mapping[str, Any]) -> str:
    """Return a leak if the interval of any risk is above 0; intervals hold jointly for all
    attacks.
    """
    risks = [risk for risk in estimates.values() if not isinstance(risk, str)]
    if not risks:
        return NO_VERDICT
    return LEAK if any(risk[3] > 0 for risk in risks) else NOTHING


def sdmetrics_verdict(estimates: Mapping[str, Any]) -> str:
    """Return a leak if significantly more than half of the rows are nearer to train."""
    return LEAK if _above_half(estimates["nearer to train"], estimates["rows"]) < LEVEL else NOTHING


def mostlyai_verdict(estimates: Mapping[str, Any]) -> str:
    """Return a leak if significantly many rows are nearer to train, or identical to a training row.

    "Nearer" is the largest share over several sets of columns, and the level is divided by their
    number.
    """
    rows = estimates["rows"]
    same, other = (round(estimates[f"identical to {role}"] * rows) for role in ("train", "holdout"))
    identical = stats.binomtest(same, same + other, alternative="greater").pvalue if same else 1.0
    nearer = _above_half(estimates["DCR share"], rows)
    return LEAK if identical < LEVEL / 2 or nearer < LEVEL / 2 / estimates["looks"] else NOTHING


def _above_half(share: float, rows: int) -> float:
    """Return the probability of this share or a larger one if both sides are equally likely."""
    return float(stats.binom.sf(round(share * rows) - 1, rows, 0.5))


RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "anonymeter": anonymeter_verdict,
    "sdmetrics": sdmetrics_verdict,
    "mostlyai": mostlyai_verdict,
}


def verdict_of(line: Line) -> str:
    """Return the tool's verdict in its own words."""
    if line["tool"] == "ours":
        return line["verdict"]
    return RULES[line["tool"]](line["estimates"]) if "estimates" in line else NO_VERDICT


def right(entry: Entry, verdict: str) -> bool:
    """Return True if the verdict publishes only releases that are harmless and can be shown to
    be.
    """
    return (verdict in (PASS, NOTHING)) == (entry.expected == PASS) and not (
        verdict == NO_VERDICT and entry.expected == REFUSED
    )
