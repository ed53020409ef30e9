"""Distance to the closest record: Palacios' privacy score, and what the distances say about membership."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.base import Measured, Metric, rows_of
from privacy_assets.metrics.dcr.identical import IDENTICAL_EXCESS, identical_excess
from privacy_assets.metrics.dcr.matches import ROLES, Matches, Space
from privacy_assets.metrics.dcr.privacy_score import privacy_score
from privacy_assets.metrics.declarations import Causes, Curves, Intervals, Protected
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.targets import Budget, target_rows
from privacy_assets.settings import Tuple, declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import Subjects

KEYS = ("distance", "ratio")
_PROBABILITIES = np.linspace(0, 1, 101)


@declared
class Dcr(Metric):
    """Is the synthetic table closer to the training rows than unseen rows are, and does it tell T from H?

    ``privacy_score``: see :mod:`.privacy_score`; distances that agree to float32 tie.

    ``member_excess``: each synthetic row is matched to its nearest row of T u H and ranked by a key that sees no labels
    ("distance", or "ratio": distance / leave-one-out distance of the matched row inside T u H, where a matched row that
    stands there twice is never suspicious). Among the closest ``tails`` of S the distinct matched rows are counted:
    excess = (their mean label - share of subjects in T) / (1 - that share); 0 by chance, 1 when all are members,
    negative when members are avoided. Two statistics, because one interval cannot serve both limits: ``member_excess``
    is the excess by distance at ``headline_tail``, fixed in advance, or at so many more of the closest rows that they
    match ``headline_rows`` real rows: fewer are no evidence of safety, and repeated common rows match few;
    ``member_excess_any`` is the entry farthest from chance over all spaces, keys and tails (interval simultaneous over
    all of them, at ``any_confidence``): its near end is what is significant, leak or avoidance.

    ``identical_excess``: see :mod:`.identical`; counted against at least ``negligible`` of
    the synthetic rows or of the training rows, whichever are fewer: a share of three matches says nothing, and a longer
    table must not be allowed to repeat more people.

    ``max_targets`` is a budget for the one search that may be sampled: the rows of random holdout people, with all that
    each has, whose distances say what chance allows in ``privacy_score``. Synthetic rows, among which copies stand, and
    the real rows in which they are looked for are never sampled, so that all other statistics are of everybody.

    Permutations and bootstraps are by subject. Ties in matching are broken by content, in ranking first by
    which match stands farther from all other real rows, then by content.
    """

    name = "dcr"
    summary = "Distance of synthetic rows to the closest real record, beside that of unseen rows."
    needs = frozenset(ROLES)
    optional = frozenset({"embedder"})
    statistics = (
        StatisticSpec("privacy_score", "Share of synthetic rows closer to training rows than chance allows."),
        StatisticSpec(
            "privacy_score_embedded",
            "Share of synthetic rows closer to training rows than chance allows, in the contrastive embedding.",
        ),
        StatisticSpec(
            "member_excess", "Excess share of members among the real rows closest to the synthetic rows.", "two_sided"
        ),
        StatisticSpec(
            "member_excess_embedded",
            "Excess share of members among the real rows closest to the synthetic rows, in the embedding.",
            "two_sided",
        ),
        StatisticSpec(
            "member_excess_any",
            "Excess share of members, farthest from chance over all distances and tails.",
            "two_sided",
        ),
        IDENTICAL_EXCESS,
    )
    default_limits = (
        Limit(
            "dcr.privacy_score",
            at_most=0.12,
            source="simulated: the densest unseen rows, which give nobody away, stay within 0.106 in 100 splits of "
            "Adult and 0.058 in 25 of UK census (8,000/2,000/8,000 rows)",
        ),
        Limit(
            "dcr.member_excess_any",
            at_most=0.25,
            bound="lower",
            source="significant at 99.5 % over all distances and tails together; tolerated: what trees with leaves of "
            "50 rows show (at most 0.19 in 400 splits of Adult and UK census)",
        ),
    )

    plots = (
        Curves(
            table="distances",
            caption="Distance to the nearest training row, {} space. A leak shows as a synthetic curve that rises "
            "before the holdout curve: synthetic rows lie closer to training rows than unseen people do.",
            curves={
                "synthetic to training (SRD)": ("srd", "quantile"),
                "holdout to training (RRD)": ("rrd", "quantile"),
            },
            labels=("distance", "share of rows"),
            by="space",
        ),
        Intervals(
            table="tails",
            caption="Member excess among the closest synthetic rows: share of matched real rows from training, beyond "
            "what chance gives. Zero is no leak; both directions give members away.",
            x="tail",
            y="excess",
            series=("space", "key"),
            labels=("share of closest synthetic rows", "member excess"),
        ),
    )
    question = "copies"
    causes = Causes(
        "over-fitting",
        dict.fromkeys(("privacy_score", "privacy_score_embedded", "identical_excess"), "copied rows"),
    )
    protections = (Protected("similarity", ("identical_excess", "member_excess")),)

    alpha: float = Field(default=0.02, gt=0, le=0.5, description="share of holdout rows that count as close")
    bootstraps: int = Field(default=1000, ge=50, description="bootstraps of the privacy score")
    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")
    tails: Annotated[tuple[Annotated[float, Field(gt=0, le=0.5)], ...], Tuple] = Field(
        default=(0.005, 0.02, 0.05, 0.20), min_length=1, description="shares of synthetic rows that are looked at"
    )
    headline_tail: float = Field(default=0.05, gt=0, le=0.5, description="the tail of member_excess, one of them")
    headline_rows: int = Field(default=250, ge=1, description="synthetic rows of member_excess, at least")
    any_confidence: float = Field(default=0.995, ge=0.5, lt=1, description="of member_excess_any")
    identical_confidence: float = Field(default=0.99, ge=0.5, lt=1, description="of identical_excess")
    negligible: float = Field(default=0.05, gt=0, le=0.5, description="share of rows: fewer matches count as so many")
    max_targets: Budget = Field(default=None, description="most rows that are attacked; all of them without")

    def __post_init__(self) -> None:
        if self.headline_tail not in self.tails:
            raise ConfigError(f"metric dcr: headline_tail {self.headline_tail} is none of the tails {self.tails}.")

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics and the tables "tails" and "distances"; NaN statistics where a side has no rows."""
        sizes = [len(inputs.tables[role]) for role in ROLES]
        if min(sizes) == 0:
            return Measured(self._in_order([], sizes[2], 0, f"{ROLES[sizes.index(0)]} has no rows"))
        rows = target_rows(inputs, ("holdout",), self.max_targets, "dcr.attacked")
        matches = Matches.of(inputs, rows)
        estimates, tails = self.excesses(matches, inputs.rng("dcr.permutations"))
        unseen = inputs.subject_codes("holdout")
        unseen = unseen if rows is None else np.unique(unseen[rows], return_inverse=True)[1]
        for space in matches.spaces:
            rng = inputs.rng(f"dcr.bootstrap.{space.name}")
            spec = self.spec(_in_space("privacy_score", space))
            estimates.append(privacy_score(spec, space.srd, space.rrd, unseen, self.alpha, self.bootstraps, rng))
        complete = self._in_order(estimates, sizes[2], matches.people.smallest_side, "no embedder")
        return Measured(complete, {"tails": tails, "distances": _distance_table(matches.spaces)})

    def excesses(self, matches: Matches, rng: np.random.Generator) -> tuple[list[Estimate], list[dict[str, Any]]]:
        """The label-conditional statistics, and the table "tails"."""
        estimates, tails = self._member_excess(matches.spaces, matches.people, rng)
        people, n = matches.people, len(matches.synthetic)
        floor = self.negligible * min(int(people.member[people.codes].sum()), n)
        found = identical_excess(matches.real, people, matches.synthetic, floor, self.identical_confidence)
        return [*estimates, found], tails

    def _member_excess(
        self, spaces: Sequence[Space], people: Subjects, rng: np.random.Generator
    ) -> tuple[list[Estimate], list[dict[str, Any]]]:
        entries = [(space, key, tail) for space in spaces for key in KEYS for tail in self.tails]
        hits = [space.closest(key, tail) for space, key, tail in entries]
        every = [entry[0] for entry in entries] + list(spaces)
        headlines = [space.closest("distance", self.headline_tail, self.headline_rows) for space in spaces]
        weights = np.stack([_weights(people, *hit) for hit in zip(every, hits + headlines, strict=True)])
        counts = (len(spaces[0].srd), people.smallest_side)
        found = inference.excess(weights, people, self.permutations, rng)
        estimates: list[Estimate] = []
        rows: list[dict[str, Any]] = []
        for headline, space in enumerate(spaces, start=len(entries)):
            own = [i for i, entry in enumerate(entries) if entry[0] is space]
            band = found[own].band()
            rows += rows_of(
                space=[space.name] * len(own), key=[entries[i][1] for i in own], tail=[entries[i][2] for i in own],
                matched=[len(hits[i]) for i in own], excess=found.observed[own], low=band.low, high=band.high,
            )  # fmt: skip
            estimates.append(found[[headline]].estimate(self.spec(_in_space("member_excess", space)), counts))
        # Null deviations of the tails differ by far: the minimum detectable effect is in those of the entry that is
        # told, not, as in Evidence.worst, that of whichever entry chance would have picked.
        tried = found[: len(entries)]
        at = int(np.abs(tried.band(self.any_confidence).z).argmax())
        spec = self.spec("member_excess_any")
        return [*estimates, tried.estimate(spec, counts, at=at, confidence=self.any_confidence)], rows

    def _in_order(self, found: Sequence[Estimate], n: int, subjects: int, note: str) -> tuple[Estimate, ...]:
        """One statistic a spec; NaN with ``note`` for those that were not found."""
        by_name = {estimate.name: estimate for estimate in found}
        return tuple(by_name.get(spec.name, spec.missing(note, (n, subjects))) for spec in self.statistics)


def _weights(people: Subjects, space: Space, hit: np.ndarray) -> np.ndarray:
    """Weights (s,) that turn labels into the mean, over distinct rows ``hit``, of their rows' mean label."""
    chosen = np.zeros(len(space.sizes), dtype=bool)
    chosen[hit] = True
    rows = chosen[space.groups]
    share = 1 / (space.sizes[space.groups[rows]] * max(1, len(hit)))
    return np.bincount(people.codes[rows], weights=share, minlength=len(people))


def _in_space(statistic: str, space: Space) -> str:
    return statistic if space.name == "raw" else f"{statistic}_{space.name}"


def _distance_table(spaces: Sequence[Space]) -> list[dict[str, Any]]:
    """Quantiles of SRD and RRD in each space, for the plot."""
    rows: list[dict[str, Any]] = []
    for space in spaces:
        srd, rrd = np.quantile(space.srd, _PROBABILITIES), np.quantile(space.rrd, _PROBABILITIES)
        rows += rows_of(space=[space.name] * len(srd), quantile=_PROBABILITIES, srd=srd, rrd=rrd)
    return rows
