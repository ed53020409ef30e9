"""The report of one release: statistics, verdict and advice, as JSON, HTML and text."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, NamedTuple

from privacy_assets.errors import ConfigError, safe_repr
from privacy_assets.metrics.policies import policy_digest, read_policy
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import Policy, Status, Verdict
from privacy_assets.report.advice import (
    Protection,
    TableFacts,
    advice,
    fine_columns,
    ledger_notes,
    limit_advice,
    privacy_configuration,
)
from privacy_assets.report.answers import Answer, Sizes, answers
from privacy_assets.report.html import notebook_html, page_html
from privacy_assets.report.page import (
    Entry,
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
from privacy_assets.report.words import NOTHING, clean, cleaned, interval, number
from privacy_assets.stats.estimates import Estimate, MetricResult, to_jsonable
from privacy_assets.version import PACKAGE_VERSION

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


class Score(NamedTuple):
    """A score that a metric gives.

    Attributes:
        value: From 0 to 100; on the page, a text.
        grade: Word for it. Empty: not shown.
        meaning: What it is. Empty: a part of the score before it.
    """

    value: Any
    grade: str
    meaning: str


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that affect the statistics."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def judged(policy: Policy | None, results: Mapping[str, MetricResult], attempt: int = 1) -> Verdict:
    """Evaluate a policy as :meth:`.Policy.judge` does.

    Args:
        policy: Policy. None: the verdict is "undecided".
        results: Results by metric.
        attempt: Number of the publication attempt.

    Returns:
        Verdict with the outcomes of all limits.
    """
    if policy is None:
        return Verdict("undecided", ())
    return policy.judge(results, attempt)


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
        package_version: Version of this package.
        generator: Description of the generator, read by
            :func:`~privacy_assets.report.advice.privacy_configuration`.
        fingerprints: Publishable fingerprints: the synthetic table's content hash, and keyed or
            omitted ones of private tables. Fingerprints within ``results`` are not shown.
        versions: Versions of libraries.
        embedder: Settings of the embedder, number of epochs, and loss and accuracy of the kept
            weights, see :attr:`.Embedder.description`. None: no embedder.
        attempt: Number of the publication attempt.
        earlier_failures: Earlier failures of the same rows. If there are any, the verdict is
            "fail".
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
    package_version: str = PACKAGE_VERSION
    generator: Mapping[str, Any] | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=installed_versions)
    embedder: Mapping[str, Any] | None = None
    attempt: int = 1
    earlier_failures: Sequence[str] = ()
    signed: Mapping[str, str] | None = None
    notes: Sequence[str] = ()
    changes: Mapping[str, str] = field(default_factory=dict)
    has_earlier_releases: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Status:
        """Status "pass", "fail" or "undecided"; only "pass" may be published."""
        return "fail" if self.earlier_failures else self.policy_verdict.status

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
        if metric not in self.results:
            return None
        for estimate in self.results[metric].estimates:
            if estimate.name == statistic:
                return estimate
        return None

    def _measured(self, names: Iterable[str]) -> list[tuple[str, Estimate]]:
        """Return full name and estimate of the statistics that were measured."""
        measured = []
        for name in names:
            estimate = self.estimate(name)
            if estimate is not None and estimate.measurable:
                measured.append((name, estimate))
        return measured

    @property
    def utility(self) -> list[tuple[str, Estimate]]:
        """Full name and estimate of each measured statistic of utility. Real rows give its null
        value.
        """
        names = []
        for metric_name, metric in METRICS.core_and(self.results).items():
            for statistic in metric.utility:
                names.append(f"{metric_name}.{statistic}")
        return self._measured(names)

    @property
    def privacy_configuration(self) -> list[Protection]:
        """Known protections of the table."""
        return privacy_configuration(self.generator, self.results)

    @property
    def scores(self) -> dict[str, Score]:
        """Scores from 0 to 100 that metrics of this package give, by name; see
        :func:`~.base.score_row`.
        """
        scores = {}
        for result in self.results.values():
            if result.distribution:  # its tables have no checked form
                continue
            for row in result.tables.get("graded_scores", ()):
                scores[row["name"]] = Score(row["score"], row["grade"], row["meaning"])
        return scores

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
            self.earlier_failures,
        )

    @property
    def facts(self) -> TableFacts:
        """Facts in the report on which remedies were followed."""
        policy_name = ""
        if self.policy:
            policy_name = self.policy.extends or self.policy.part_of or ""
        n_subjects = {}
        for role, sizes in self.tables.items():
            if "subjects" in sizes:
                n_subjects[role] = sizes["subjects"]
        return TableFacts(
            self.generator,
            policy_name,
            n_subjects,
            fine_columns(self.results.values()),
            is_small_release=Sizes.of(self.tables).share_that_fits < 1,
        )

    @property
    def advice(self) -> list[dict[str, Any]]:
        """Advice on the limits that did not pass, by cause, as plain mappings; see
        ``report.advice``.
        """
        return advice(self.policy_verdict.not_passed, self.facts)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that ``json.dumps(..., allow_nan=False)`` accepts; NaN and infinity
        become None.
        """
        configuration = self.privacy_configuration
        content = {
            "verdict": self.verdict,
            "title": self.title,
            "package_version": self.package_version,
            "seed": self.seed,
            "metrics": {name: _metric(result) for name, result in self.results.items()},
            "limits": [to_jsonable(outcome.to_json()) for outcome in self.policy_verdict.outcomes],
            "answers": [answer.to_json() for answer in self.answers],
            "advice": self.advice,
            "privacy_configuration": [protection.to_json() for protection in configuration],
            "policy": to_jsonable(self.policy.to_dict()) if self.policy else None,
            "tables": to_jsonable(self.tables),
            "generator": to_jsonable(self.generator),
            "embedder": to_jsonable(self.embedder),
            "attempt": self.attempt,
            "fingerprints": to_jsonable(self.fingerprints),
            "versions": to_jsonable(self.versions),
        }
        # Empty facts are left out.
        if self.earlier_failures:
            content["earlier_failures"] = list(self.earlier_failures)
        if self.signed:
            content["signed"] = to_jsonable(self.signed)
        if self.notes:
            content["notes"] = list(self.notes)
        if self.changes:
            content["changes"] = dict(self.changes)
        if self.origin:
            content["origin"] = dict(self.origin)
        if self.has_earlier_releases:
            content["has_earlier_releases"] = True
        return content

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Load a report and evaluate its limits again.

        Args:
            data: Output of :meth:`to_json`.

        Raises:
            ConfigError: If the stated verdict differs from the evaluation.
        """
        policy = None
        if data["policy"] is not None:
            policy = read_policy(data["policy"], data["package_version"])
        results = {name: _result(name, entry, data) for name, entry in data["metrics"].items()}
        attempt = int(data.get("attempt", 1))
        policy_verdict = judged(policy, results, attempt)
        earlier_failures = tuple(data.get("earlier_failures", ()))
        computed = "fail" if earlier_failures else policy_verdict.status
        if computed != data["verdict"]:
            raise ConfigError(
                f"report: it states {safe_repr(data['verdict'])}, but its statistics give"
                f" {computed!r}."
            )
        return cls(
            title=data["title"],
            policy=policy,
            policy_verdict=policy_verdict,
            results=results,
            tables=data["tables"],
            seed=data["seed"],
            package_version=data["package_version"],
            generator=data["generator"],
            fingerprints=data["fingerprints"],
            versions=data["versions"],
            embedder=data["embedder"],
            attempt=attempt,
            earlier_failures=earlier_failures,
            signed=data.get("signed"),
            notes=tuple(data.get("notes", ())),
            changes=dict(data.get("changes", {})),
            has_earlier_releases=data.get("has_earlier_releases", False),
            origin=dict(data.get("origin", {})),
        )

    def _displayed_results(self) -> Mapping[str, MetricResult]:
        """Return the results, without words of grade unless they are shown."""
        if self.shows_grades:
            return self.results
        return {name: without_grades(result) for name, result in self.results.items()}

    def _displayed_scores(self) -> dict[str, Score]:
        """Return the scores as text, without words of grade unless they are shown."""
        scores = {}
        for name, score in self.scores.items():
            level = clean(score.grade, 20) if self.shows_grades else ""
            scores[clean(name, 60)] = Score(number(score.value), level, clean(score.meaning, 600))
        return scores

    def _facts(self) -> list[tuple[str, str]]:
        return [
            *file_facts(self.origin, self.fingerprints),
            *size_facts(self.tables, self.generator),
            *origin_facts(self.origin, self.package_version),
            *signing_facts(self.policy, self.signed, self.attempt),
        ]

    def _sizes(self) -> list[tuple[str, list[str]]]:
        """Return the tables with their numbers of rows, columns and subjects."""
        sizes = []
        for role, size in self.tables.items():
            n_rows = cell(size.get("rows"))
            n_columns = cell(size.get("columns"))
            n_subjects = cell(size.get("subjects"))
            sizes.append((clean(role), [n_rows, n_columns, n_subjects]))
        return sizes

    def _settings(self) -> list[tuple[str, str]]:
        title = "none"
        digest = NOTHING
        if self.policy:
            title = self.policy.title
            digest = policy_digest(self.policy)
        return [
            ("policy", title),
            ("checksum of the policy", digest),
            ("seed", str(self.seed)),
            ("version of privacy-assets", self.package_version),
        ]

    def _details(self) -> list[tuple[str, list[tuple[str, str]]]]:
        groups = {
            "changes by the threshold rule": self.changes,
            "generator": self.generator,
            "embedder": self.embedder,
            "fingerprints": self.fingerprints,
            "versions": self.versions,
        }
        details = []
        for group, values in groups.items():
            displayed = []
            for name, text in pairs(values):
                # The statistics before a filter have a chart instead.
                if not name.startswith("filter.before."):
                    displayed.append((name, text))
            details.append((group, displayed))
        return details

    def _configuration(self) -> list[Entry]:
        """Return the protections whose state is known."""
        entries = []
        for protection in self.privacy_configuration:
            if protection.state != "unknown":
                entries.append(protection_entry(protection, self.estimate))
        return entries

    def _utility(self) -> list[tuple[str, str, str]]:
        """Return each statistic of utility with its interval and the value of real rows."""
        texts = []
        for name, estimate in self.utility:
            texts.append((name, interval(estimate), number(estimate.null)))
        return texts

    def _page_notes(self) -> list[str]:
        """Return the notes on the tables, and those on all releases together if there are earlier
        ones.
        """
        notes = [*self.notes]
        if self.has_earlier_releases:
            notes += ledger_notes(self.policy_verdict.outcomes, self.facts)
        return cleaned(notes, 600)

    def page(self) -> Page:
        """Return the content of every form as plain values."""
        outcomes = self.policy_verdict.outcomes
        limits = {outcome.limit.key: limit_entry(outcome) for outcome in outcomes}
        results = self._displayed_results()
        reason = headline(self.policy_verdict, self.policy, self.earlier_failures)
        advice_entries = self.advice
        summary = reason
        if advice_entries:
            summary = f"{reason} {advice_entries[0]['means']}"
        answered = self.answers
        utility = self.utility
        decision = ""
        if not self.is_part:
            decision = next_step(self.verdict, is_signed=self.signed is not None)
        return Page(
            title=clean(self.title),
            verdict=self.verdict,
            label=self.label,
            headline=reason,
            summary=summary,
            notes=self._page_notes(),
            facts=self._facts(),
            doubts=doubts(answered, outcomes, self.results),
            answers=[answer_entry(answer, results, limits) for answer in answered],
            limits=list(limits.values()),
            limit_advice=limit_advice(self.policy_verdict.not_passed),
            advice=[advice_entry(entry, outcomes) for entry in advice_entries],
            next_step=decision,
            configuration=self._configuration(),
            scores=self._displayed_scores(),
            utility=self._utility(),
            useful=useful(utility, self.results.values(), answered[0].status == "fail"),
            utility_text=utility_text(utility),
            filter=filter_entry(self.generator, self.results),
            sizes=self._sizes(),
            settings=self._settings(),
            details=self._details(),
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
    """Return a result as a plain mapping."""
    return {
        "estimates": _estimates_to_json(result.estimates),
        "tables": to_jsonable(result.tables),
        "settings": to_jsonable(result.settings),
        "seconds": to_jsonable(result.seconds),
        "on_copy": _estimates_to_json(result.on_copy),
    }


def _estimates_to_json(estimates: Iterable[Estimate]) -> dict[str, Any]:
    return {estimate.name: to_jsonable(estimate.to_json()) for estimate in estimates}


def _result(name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> MetricResult:
    """Load the result of a metric; ``data`` is its report."""
    return MetricResult(
        metric=name,
        estimates=_estimates_from_json(entry["estimates"]),
        tables=entry["tables"],
        settings=entry["settings"],
        seed=data["seed"],
        package_version=data["package_version"],
        seconds=math.nan if entry["seconds"] is None else entry["seconds"],
        on_copy=_estimates_from_json(entry["on_copy"]),
    )


def _estimates_from_json(estimates: Mapping[str, Any]) -> tuple[Estimate, ...]:
    return tuple(Estimate.from_json(name, values) for name, values in estimates.items())
