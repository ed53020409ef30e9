"""What counts as a leak in the numbers of a peer, and which verdicts are right: set before the battery was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scipy import stats

from benchmarks.battery_releases import PASS, REFUSED, Entry

LEAK, NOTHING, NO_VERDICT = "leak", "no leak", "no verdict"
LEVEL = 0.05
Line = dict[str, Any]  # "release", "tool", and what was found


def anonymeter_verdict(estimates: Mapping[str, Any]) -> str:
    """A leak where the interval of any risk lies above 0; the intervals hold for all attacks together."""
    risks = [risk for risk in estimates.values() if not isinstance(risk, str)]
    if not risks:
        return NO_VERDICT
    return LEAK if any(risk[3] > 0 for risk in risks) else NOTHING


def sdmetrics_verdict(estimates: Mapping[str, Any]) -> str:
    """A leak where more than half of the rows are nearer to train, by more than chance gives."""
    return LEAK if _above_half(estimates["nearer to train"], estimates["rows"]) < LEVEL else NOTHING


def mostlyai_verdict(estimates: Mapping[str, Any]) -> str:
    """A leak where the share of rows nearer to train, or that of identical rows, is larger than chance gives.

    "Nearer" is the largest of several looks, and is held against so many.
    """
    rows = estimates["rows"]
    same, other = (round(estimates[f"identical to {role}"] * rows) for role in ("train", "holdout"))
    identical = stats.binomtest(same, same + other, alternative="greater").pvalue if same else 1.0
    nearer = _above_half(estimates["DCR share"], rows)
    return LEAK if identical < LEVEL / 2 or nearer < LEVEL / 2 / estimates["looks"] else NOTHING


def _above_half(share: float, rows: int) -> float:
    """Chance of such a share or a larger one where either side is as likely."""
    return float(stats.binom.sf(round(share * rows) - 1, rows, 0.5))


RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "anonymeter": anonymeter_verdict,
    "sdmetrics": sdmetrics_verdict,
    "mostlyai": mostlyai_verdict,
}


def verdict_of(line: Line) -> str:
    """What the tool says, in its own words."""
    if line["tool"] == "ours":
        return line["verdict"]
    return RULES[line["tool"]](line["estimates"]) if "estimates" in line else NO_VERDICT


def right(entry: Entry, verdict: str) -> bool:
    """Only what is harmless, and can be shown to be, is to be let through."""
    return (verdict in (PASS, NOTHING)) == (entry.expected == PASS) and not (
        verdict == NO_VERDICT and entry.expected == REFUSED
    )
