"""The report of one release: aggregates only, judged, in JSON, HTML and plain text."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, get_args

from privacy_assets.errors import ConfigError, shown
from privacy_assets.metrics.declarations import Part
from privacy_assets.metrics.membership_inference.gretel import data_privacy_score
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import Judgement, Policy
from privacy_assets.report.advice import advice
from privacy_assets.report.answers import Answer, answers
from privacy_assets.report.configuration import Protection, privacy_configuration
from privacy_assets.stats.estimates import Estimate, plain
from privacy_assets.stats.limits import Limit, Verdict
from privacy_assets.stats.results import MetricResult
from privacy_assets.version import ENGINE_VERSION

_LIBRARIES = ("privacy-assets", "numpy", "pandas", "pyarrow", "scipy", "scikit-learn", "numba", "torch")


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries behind the numbers; a library that is missing is left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured on one synthetic table, and the verdict of a policy on it.

    ``results`` are by metric name, ``tables`` the sizes by role (``{"rows", "columns", "subjects"}``). ``fingerprints``
    must be safe to show: the synthetic table's content hash as it is, those of private tables keyed or left out; the
    fingerprints inside ``results`` are never shown. ``generator`` and ``embedder`` are free descriptions, of which
    :func:`~privacy_assets.report.configuration.privacy_configuration` reads what protected the rows. ``remembered`` are
    earlier failures of the same rows: with any of them the verdict is "fail" whatever the statistics say. ``signed``
    says when the verdict was signed ("date"), by which key ("key") and on a file of which SHA-256 ("sha256"); None
    where nobody signed. ``notes`` say how the tables were read. But for the date a report holds no time of day, and one
    report always gives the same bytes (a second run takes other ``seconds``).
    """

    title: str
    policy: Policy
    judgement: Judgement
    results: Mapping[str, MetricResult]
    tables: Mapping[str, Mapping[str, int]]
    seed: int
    engine_version: str = ENGINE_VERSION
    generator: Mapping[str, Any] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=installed_versions)
    embedder: Mapping[str, Any] | None = None
    attempt: int = 1
    remembered: Sequence[str] = ()
    signed: Mapping[str, str] | None = None
    notes: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict:
        """ "pass", "fail" or "not_assessable"; only "pass" may be published."""
        return "fail" if self.remembered else self.judgement.verdict

    def estimate(self, name: str) -> Estimate | None:
        """The statistic METRIC.STATISTIC; None where it is not among the results."""
        metric, _, statistic = name.partition(".")
        estimates = self.results[metric].estimates if metric in self.results else ()
        return next((estimate for estimate in estimates if estimate.name == statistic), None)

    @property
    def data_privacy_score(self) -> dict[str, Any] | None:
        """Gretel's Data Privacy Score: ``score``, ``grade`` and both components; None unless both were measured."""
        named = {
            part: f"{metric}.{statistic}"
            for metric, kind in METRICS.items()
            for part, statistic in kind.protection_score.items()
        }
        measured = {part: self.estimate(named[part]) for part in get_args(Part)}
        found = {part: estimate.value for part, estimate in measured.items() if estimate is not None}
        if len(found) < len(measured):
            return None
        score, level = data_privacy_score(**found)
        return None if math.isnan(score) else {"score": score, "grade": level, **found}

    @property
    def utility(self) -> list[tuple[str, Estimate, Estimate]]:
        """Full name, statistic of the synthetic rows and of as many real rows, as far as they were measured."""
        names = [
            (f"{metric}.{own}", f"{metric}.{real}")
            for metric, kind in METRICS.items()
            for own, real in kind.utility.items()
        ]
        pairs = [(name, self.estimate(name), self.estimate(real)) for name, real in names]
        return [(name, own, real) for name, own, real in pairs if own and real and own.measurable and real.measurable]

    @property
    def privacy_configuration(self) -> list[Protection]:
        """The protections that made the table, as far as they are known."""
        return privacy_configuration(self.generator)

    @property
    def answers(self) -> list[Answer]:
        """The questions of whoever signs, each with its answer; see ``report.answers``."""
        return answers(self)

    @property
    def advice(self) -> list[dict[str, Any]]:
        """What to do about the limits that did not pass, by cause, as plain records; see ``report.advice``."""
        return advice(self.judgement.broken, self.privacy_configuration)

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping that ``json.dumps(..., allow_nan=False)`` accepts; NaN and infinity become None."""
        return {
            "verdict": self.verdict,
            "title": self.title,
            "engine_version": self.engine_version,
            "seed": self.seed,
            "metrics": {name: _metric(result) for name, result in self.results.items()},
            "limits": [plain(outcome.to_json()) for outcome in self.judgement.outcomes],
            "answers": [answer.to_json() for answer in self.answers],
            "advice": self.advice,
            "privacy_configuration": [protection.to_json() for protection in self.privacy_configuration],
            "policy": plain(self.policy.to_dict()),
            "data_privacy_score": plain(self.data_privacy_score),
            "tables": plain(self.tables),
            "generator": plain(self.generator),
            "embedder": plain(self.embedder),
            "attempt": self.attempt,
            "fingerprints": plain(self.fingerprints),
            "versions": plain(self.versions),
            **({"remembered": list(self.remembered)} if self.remembered else {}),
            **({"signed": plain(self.signed)} if self.signed else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Inverse of :meth:`to_json`; the statistics are judged again.

        ConfigError when the verdict that the file states is not the one that its statistics and its policy give.
        """
        limits = tuple(Limit(**limit) for limit in data["policy"]["limits"])
        policy = Policy(limits, name=data["policy"]["name"])
        results = {name: _result(name, entry, data) for name, entry in data["metrics"].items()}
        attempt = int(data.get("attempt", 1))
        judgement, remembered = policy.judge(results, attempt), tuple(data.get("remembered", ()))
        given = "fail" if remembered else judgement.verdict
        if given != data["verdict"]:
            raise ConfigError(f"report: it states {shown(data['verdict'])}, but its statistics give {given!r}.")
        kept = ("title", "tables", "seed", "engine_version", "generator", "fingerprints", "versions", "embedder")
        own = {name: data[name] for name in kept}
        own |= {"signed": data.get("signed"), "notes": tuple(data.get("notes", ()))}
        return cls(policy=policy, judgement=judgement, results=results, attempt=attempt, remembered=remembered, **own)

    def to_html(self) -> str:
        """Return the full report as one self-contained HTML page without scripts or links to other hosts."""
        from privacy_assets.report.html import render_page

        return render_page(self)

    def _repr_html_(self) -> str:
        """Return the compact form for notebooks."""
        from privacy_assets.report.html import render_notebook

        return render_notebook(self)

    def to_text(self) -> str:
        """Return the verdict and a table of limits for the terminal."""
        from privacy_assets.report.text import report_table

        return report_table(self)

    def __str__(self) -> str:
        return self.to_text()


def _metric(result: MetricResult) -> dict[str, Any]:
    return {
        "estimates": {estimate.name: plain(estimate.to_json()) for estimate in result.estimates},
        "tables": plain(result.tables),
        "settings": plain(result.settings),
        "seconds": plain(result.seconds),
    }


def _result(name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> MetricResult:
    return MetricResult(
        metric=name,
        estimates=tuple(Estimate.from_json(name, values) for name, values in entry["estimates"].items()),
        tables=entry["tables"],
        settings=entry["settings"],
        seed=data["seed"],
        engine_version=data["engine_version"],
        seconds=math.nan if entry["seconds"] is None else entry["seconds"],
    )
