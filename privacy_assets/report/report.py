"""The report of one release: statistics, verdict and advice, as JSON, HTML and text."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, get_args

from privacy_assets.errors import ConfigError, safe_repr
from privacy_assets.metrics.base import ScorePart
from privacy_assets.metrics.data_privacy import DataPrivacy, configuration_score
from privacy_assets.metrics.membership_inference.gretel import data_privacy_score, grade
from privacy_assets.metrics.policies import policy_digest, read_policy
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import Policy, Status, Verdict
from privacy_assets.report.advice import (
    Known,
    Protection,
    advice,
    fine_columns,
    ledger_notes,
    limit_advice,
    privacy_configuration,
)
from privacy_assets.report.answers import Answer, Sizes, answers
from privacy_assets.report.html import notebook_html, page_html
from privacy_assets.report.page import (
    Page,
    advice_entry,
    answer_entry,
    cell,
    doubts,
    file_facts,
    filter_entry,
    headline,
    limit_entry,
    next_step,
    origin_facts,
    pairs,
    protection_entry,
    signing_facts,
    size_facts,
    useful,
    utility_text,
    without_grades,
)
from privacy_assets.report.text import COLUMNS, page_text
from privacy_assets.report.words import NOTHING, clean, interval, number
from privacy_assets.stats.estimates import Estimate, MetricResult, to_jsonable
from privacy_assets.version import ENGINE_VERSION

_LIBRARIES = (
    "privacy-assets",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "scikit-learn",
    "numba",
    "torch",
)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that affect the statistics."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def judged(policy: Policy | None, results: Mapping[str, MetricResult], attempt: int = 1) -> Verdict:
    """Evaluate a policy as :meth:`.Policy.judge` does. Without a policy, the verdict is
    "undecided".
    """
    return Verdict("undecided", ()) if policy is None else policy.judge(results, attempt)


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """Statistics of a synthetic table, and the verdict of a policy on it.

    Reports contain aggregates only. A report contains no time of day except the signing date, and
    equal reports give equal bytes. A second run differs in ``seconds``, and on another day or by
    another user in ``origin``.

    Attributes:
        title: Title for readers.
        policy: Policy. None: no limit applies, and the verdict is "undecided".
        policy_verdict: Outcomes of its limits.
        results: Results by metric.
        tables: "rows", "columns" and "subjects" of each table, by role.
        seed: Seed of the metrics.
        engine_version: Version of this package.
        generator: Description of the generator, read by
            :func:`~privacy_assets.report.advice.privacy_configuration`.
        fingerprints: Publishable fingerprints: the synthetic table's content hash, and keyed or
            omitted ones of private tables. Fingerprints within ``results`` are not shown.
        versions: Versions of libraries.
        embedder: Settings of the embedder, number of epochs, and loss and accuracy of the kept
            weights, see :attr:`.Embedder.description`. None: no embedder.
        attempt: Number of the publication attempt.
        remembered: Earlier failures of the same rows. If there are any, the verdict is "fail".
        signed: "date" of the signature, "key", and "sha256" of the signed file. None: not signed.
        notes: Notes on how the tables were read.
        changes: Changes of the real tables by the threshold rule, by column, as texts. Empty
            outside of a pipeline.
        origin: Facts on an evaluation outside of a pipeline: "file" and "sha256" of the synthetic
            table, if it is a file, "date", and "by", the user of the system.
        has_earlier_releases: True if statistics count earlier releases, which were passed or
            published.
    """

    title: str
    policy: Policy | None
    policy_verdict: Verdict
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
    changes: Mapping[str, str] = field(default_factory=dict)
    has_earlier_releases: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Status:
        """Status "pass", "fail" or "undecided"; only "pass" may be published."""
        return "fail" if self.remembered else self.policy_verdict.status

    @property
    def is_part(self) -> bool:
        """Whether only a part of a shipped policy was evaluated. A pass of a part does not support
        publication.
        """
        return self.policy is not None and self.policy.part_of is not None

    @property
    def label(self) -> str:
        """The verdict for readers."""
        if self.is_part and self.verdict == "pass":
            return "pass of a part"
        return self.verdict

    def estimate(self, name: str) -> Estimate | None:
        """Return a statistic, or None if it was not computed.

        Args:
            name: METRIC.STATISTIC, for example ``dcr.member_excess``.
        """
        metric, _, statistic = name.partition(".")
        estimates = self.results[metric].estimates if metric in self.results else ()
        return next((estimate for estimate in estimates if estimate.name == statistic), None)

    @property
    def _score_parts(self) -> dict[str, float]:
        """Measured parts of the Data Privacy Score, "membership" and "attribute"."""
        named = [
            (part, self.estimate(f"{metric}.{statistic}"))
            for metric, kind in METRICS.items()
            for part, statistic in kind.score_parts.items()
        ]
        found = {
            part: estimate.value for part, estimate in named if estimate and estimate.measurable
        }
        repeated = (
            self.results[DataPrivacy.name].tables.get("parts", ())
            if DataPrivacy.name in self.results
            else ()
        )
        return {row["part"]: row["score"] for row in repeated} | found

    @property
    def data_privacy_score(self) -> dict[str, Any] | None:
        """Gretel's Data Privacy Score with ``grade`` and both components, or None unless both were
        measured.
        """
        found = self._score_parts
        if len(found) < len(get_args(ScorePart)):
            return None
        score, level = data_privacy_score(**found)
        return {"score": score, "grade": level, **found}

    @property
    def utility(self) -> list[tuple[str, Estimate]]:
        """Full name and estimate of each measured statistic of utility. Real rows give its null
        value.
        """
        names = [f"{metric}.{name}" for metric, kind in METRICS.items() for name in kind.utility]
        found = [(name, self.estimate(name)) for name in names]
        return [(name, estimate) for name, estimate in found if estimate and estimate.measurable]

    @property
    def privacy_configuration(self) -> list[Protection]:
        """Known protections of the table."""
        return privacy_configuration(self.generator)

    @property
    def privacy_configuration_score(self) -> dict[str, Any] | None:
        """Score and ``grade`` of Gretel's Privacy Configuration, or None unless all protections are
        reported.
        """
        score = configuration_score(self.generator)
        return None if math.isnan(score) else {"score": score, "grade": grade(score)}

    @property
    def gretel_scores(self) -> dict[str, tuple[float, str]]:
        """Measured score and grade of the Data Privacy Score, its parts and the Privacy
        Configuration, by name.
        """
        whole, configured = self.data_privacy_score, self.privacy_configuration_score
        parts = {
            f"{part} inference protection": (score, grade(score))
            for part, score in self._score_parts.items()
        }
        return {
            **({"Data Privacy Score": (whole["score"], whole["grade"])} if whole else {}),
            **parts,
            **(
                {"Privacy Configuration": (configured["score"], configured["grade"])}
                if configured
                else {}
            ),
        }

    @property
    def shows_grades(self) -> bool:
        """Whether words of grade are shown: the table passes by a whole policy."""
        return self.verdict == "pass" and not self.is_part

    @property
    def answers(self) -> list[Answer]:
        """Answers to the questions of an approver; see ``report.answers``."""
        return answers(
            self.policy_verdict.outcomes,
            self.results,
            self.verdict,
            Sizes.of(self.tables),
            self.remembered,
        )

    @property
    def known(self) -> Known:
        """Facts in the report on which remedies were followed."""
        return Known(
            self.generator,
            (self.policy.extends or self.policy.part_of or "") if self.policy else "",
            {role: sizes["subjects"] for role, sizes in self.tables.items() if "subjects" in sizes},
            fine_columns(self.results.values()),
        )

    @property
    def advice(self) -> list[dict[str, Any]]:
        """Advice on the limits that did not pass, by cause, as plain records; see
        ``report.advice``.
        """
        return advice(self.policy_verdict.broken, self.known)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that ``json.dumps(..., allow_nan=False)`` accepts; NaN and infinity
        become None.
        """
        return {
            "verdict": self.verdict,
            "title": self.title,
            "engine_version": self.engine_version,
            "seed": self.seed,
            "metrics": {name: _metric(result) for name, result in self.results.items()},
            "limits": [to_jsonable(outcome.to_json()) for outcome in self.policy_verdict.outcomes],
            "answers": [answer.to_json() for answer in self.answers],
            "advice": self.advice,
            "privacy_configuration": [
                protection.to_json() for protection in self.privacy_configuration
            ],
            "privacy_configuration_score": to_jsonable(self.privacy_configuration_score),
            "policy": to_jsonable(self.policy.to_dict()) if self.policy else None,
            "data_privacy_score": to_jsonable(self.data_privacy_score),
            "tables": to_jsonable(self.tables),
            "generator": to_jsonable(self.generator),
            "embedder": to_jsonable(self.embedder),
            "attempt": self.attempt,
            "fingerprints": to_jsonable(self.fingerprints),
            "versions": to_jsonable(self.versions),
            **({"remembered": list(self.remembered)} if self.remembered else {}),
            **({"signed": to_jsonable(self.signed)} if self.signed else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"changes": dict(self.changes)} if self.changes else {}),
            **({"origin": dict(self.origin)} if self.origin else {}),
            **({"has_earlier_releases": True} if self.has_earlier_releases else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Load a report and evaluate its limits again.

        Args:
            data: Output of :meth:`to_json`.

        Raises:
            ConfigError: If the stated verdict differs from the evaluation.
        """
        policy = (
            None if data["policy"] is None else read_policy(data["policy"], data["engine_version"])
        )
        results = {name: _result(name, entry, data) for name, entry in data["metrics"].items()}
        attempt = int(data.get("attempt", 1))
        policy_verdict, remembered = (
            judged(policy, results, attempt),
            tuple(data.get("remembered", ())),
        )
        computed = "fail" if remembered else policy_verdict.status
        if computed != data["verdict"]:
            raise ConfigError(
                f"report: it states {safe_repr(data['verdict'])}, but its statistics give"
                f" {computed!r}."
            )
        kept = (
            "title",
            "tables",
            "seed",
            "engine_version",
            "generator",
            "fingerprints",
            "versions",
            "embedder",
        )
        own = {name: data[name] for name in kept}
        own |= {"signed": data.get("signed"), "notes": tuple(data.get("notes", ()))}
        own["changes"] = dict(data.get("changes", {}))
        own["origin"] = dict(data.get("origin", {}))
        own["has_earlier_releases"] = data.get("has_earlier_releases", False)
        return cls(
            policy=policy,
            policy_verdict=policy_verdict,
            results=results,
            attempt=attempt,
            remembered=remembered,
            **own,
        )

    def _page_notes(self) -> list[str]:
        """Return the notes on the tables, and those on all releases together if there are earlier
        ones.
        """
        notes = [*self.notes]
        if self.has_earlier_releases:
            notes += ledger_notes(self.policy_verdict.outcomes, self.known)
        return [clean(note, 600) for note in notes]

    def page(self) -> Page:
        """Return the content of every form as plain values."""
        limits = {
            outcome.limit.key: limit_entry(outcome) for outcome in self.policy_verdict.outcomes
        }
        results = (
            self.results
            if self.shows_grades
            else {name: without_grades(result) for name, result in self.results.items()}
        )
        reason = headline(self.policy_verdict, self.policy, self.remembered)
        advised = self.advice
        answered = self.answers
        details = {
            "changes by the threshold rule": self.changes,
            "generator": self.generator,
            "embedder": self.embedder,
            "fingerprints": self.fingerprints,
            "versions": self.versions,
        }
        return Page(
            title=clean(self.title),
            verdict=self.verdict,
            label=self.label,
            headline=reason,
            summary=" ".join([reason, *(one["means"] for one in advised[:1])]),
            notes=self._page_notes(),
            facts=[
                *file_facts(self.origin, self.fingerprints),
                *size_facts(self.tables, self.generator),
                *origin_facts(self.origin, self.engine_version),
                *signing_facts(self.policy, self.signed, self.attempt),
            ],
            doubts=doubts(answered, self.policy_verdict.outcomes),
            answers=[answer_entry(answer, results, limits) for answer in answered],
            limits=[*limits.values()],
            limit_advice=limit_advice(self.policy_verdict.broken),
            advice=[advice_entry(one, self.policy_verdict.outcomes) for one in advised],
            next_step=""
            if self.is_part
            else next_step(self.verdict, is_signed=self.signed is not None),
            configuration=[
                protection_entry(protection, self.estimate)
                for protection in self.privacy_configuration
                if protection.state != "unknown"
            ],
            gretel_scores={
                name: (number(score), level if self.shows_grades else "")
                for name, (score, level) in self.gretel_scores.items()
            },
            utility=[(name, interval(one), number(one.null)) for name, one in self.utility],
            useful=useful(
                self.utility, self.results.values(), has_copies=answered[0].status == "fail"
            ),
            utility_text=utility_text(self.utility),
            filter=filter_entry(self.generator, self.results),
            sizes=[
                (clean(role), [cell(size.get(key)) for key in ("rows", "columns", "subjects")])
                for role, size in self.tables.items()
            ],
            settings=[
                ("policy", self.policy.title if self.policy else "none"),
                ("checksum of the policy", policy_digest(self.policy) if self.policy else NOTHING),
                ("seed", str(self.seed)),
                ("version of privacy-assets", self.engine_version),
            ],
            details=[
                (name, [pair for pair in pairs(values) if not pair[0].startswith("filter.before.")])
                for name, values in details.items()
            ],
        )

    def to_html(self) -> str:
        """Return the report as a self-contained HTML page without scripts or external links."""
        return page_html(self.page())

    def _repr_html_(self) -> str:
        """Return the compact form for notebooks."""
        return notebook_html(self.page())

    def to_text(self, *, columns: int = COLUMNS, every_limit: bool = True) -> str:
        """Return the verdict, the answers and the limits for terminals.

        Args:
            columns: Width of the lines in characters. Names can be longer.
            every_limit: If False, limits that pass are counted, and not listed.
        """
        return page_text(self.page(), columns=columns, every_limit=every_limit)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        n_limits = len(self.policy_verdict.outcomes)
        return (
            f"<Report {safe_repr(self.title)}: {self.label}, {n_limits} limits; print(report)"
            " shows it>"
        )


def _metric(result: MetricResult) -> dict[str, Any]:
    return {
        "estimates": {
            estimate.name: to_jsonable(estimate.to_json()) for estimate in result.estimates
        },
        "tables": to_jsonable(result.tables),
        "settings": to_jsonable(result.settings),
        "seconds": to_jsonable(result.seconds),
        "on_copy": {estimate.name: to_jsonable(estimate.to_json()) for estimate in result.on_copy},
    }


def _result(name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> MetricResult:
    return MetricResult(
        metric=name,
        estimates=tuple(
            Estimate.from_json(name, values) for name, values in entry["estimates"].items()
        ),
        tables=entry["tables"],
        settings=entry["settings"],
        seed=data["seed"],
        engine_version=data["engine_version"],
        seconds=math.nan if entry["seconds"] is None else entry["seconds"],
        on_copy=tuple(
            Estimate.from_json(name, values) for name, values in entry["on_copy"].items()
        ),
    )
