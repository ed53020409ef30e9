"""What an audit is to do, and what it found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.settings import Dict, Tuple, Unfit, declared
from privacy_assets.shadow.attacks import attack_settings
from privacy_assets.shadow.rates import Cut, EpsilonBound, Rate
from privacy_assets.shadow.selection import Selector
from privacy_assets.shadow.vulnerability import Distance
from privacy_assets.stats.estimates import plain

Sampling = Literal["subsample", "bootstrap"]
AttackName = Literal["queries", "attention"]
Even = Annotated[int, Field(ge=4, multiple_of=2)]


def _different(ids: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if ids is not None and (not ids or len(set(ids)) < len(ids)):
        raise Unfit("must be one or more different rows")
    return ids


@declared
class AuditPlan:
    """Which records are attacked, through which generator, and how; the defaults are those of Meeus et al. 2023.

    ``generator`` is fitted to ``size`` rows in every set and makes ``sample_size`` (default: ``size``). The ``records``
    most exposed by ``select`` are attacked (``neighbours`` and ``distance`` belong to the vulnerability), or the rows
    ``ids``. ``shadows`` sets teach the attack and ``tests`` sets judge it, half of each with the record; their rows
    come from disjoint parts of the table, ``auxiliary_rows`` and ``test_rows``, by default the share ``auxiliary`` and
    all others. ``sampling`` "bootstrap" draws training rows with replacement. ``remove`` > 0: the most vulnerable
    ``remove`` rows (people with all of their rows, where they are declared) are then taken out of the table, and the
    most vulnerable of the others are attacked with and without them.
    """

    part: ClassVar[str] = "audit"

    generator: Any = Field(title="a generator", description="what is attacked")
    records: int = Field(default=10, ge=1, description="attacked records")
    select: Selector = Field(default="distance", description="how they are chosen")
    neighbours: int = Field(default=5, ge=1, description="nearest records of others, of the vulnerability")
    distance: Distance = Field(default="cosine", description="distance of records, of the vulnerability")
    ids: Annotated[tuple[int, ...] | None, Tuple, AfterValidator(_different)] = Field(
        default=None, description="rows that are attacked in their place"
    )
    shadows: Even = Field(default=4000, description="sets that teach the attack, half of them with the record")
    tests: Even = Field(default=200, description="sets that judge it")
    size: int = Field(default=1000, ge=2, description="rows of a training set")
    sample_size: int | None = Field(default=None, ge=1, description="rows that the generator makes; as many without")
    auxiliary: float = Field(default=2 / 3, gt=0, lt=1, description="share of the table for shadow sets")
    auxiliary_rows: int | None = Field(default=None, ge=2, description="the same as a number of rows")
    test_rows: int | None = Field(default=None, ge=2, description="rows for test sets; all others without")
    attack: AttackName = Field(default="queries", description="the attack")
    attack_settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict, description="its settings")
    sampling: Sampling = Field(default="subsample", description="how training sets are drawn")
    remove: int = Field(default=0, ge=0, description="most vulnerable rows that are removed, to attack the next")

    def __post_init__(self) -> None:
        attack_settings(self.attack, self.attack_settings)

    def to_json(self) -> dict[str, Any]:
        """Every setting as a plain mapping; the generator by name and settings."""
        kept = {key: value for key, value in self.__dict__.items() if key != "generator"}
        named = {"generator": self.generator.name, "generator_settings": self.generator.settings()}
        mapping: dict[str, Any] = plain({**named, **kept})
        return mapping


@dataclass(frozen=True, eq=False)
class RecordAudit:
    """What the attack found out about one record, ``id`` being its row position.

    ``vulnerability`` is V_k whatever the selection, ``selected_by`` the score that it was selected by (NaN: given).
    ``auc``, ``tpr`` (by FPR) and ``epsilon`` come from ``labels`` bool (t,) and ``scores`` float64 (t,) of the test
    sets. Intervals have 95 % confidence, for this record alone.
    """

    id: int
    vulnerability: float
    selected_by: float
    auc: Rate
    tpr: Mapping[float, Rate]
    epsilon: EpsilonBound
    labels: np.ndarray
    scores: np.ndarray
    cpu_seconds: float

    @property
    def epsilon_lower_bound(self) -> float:
        """Lower bound of the epsilon of any privacy guarantee that the generator can have for this record."""
        return self.epsilon.value

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping; :meth:`from_json` reads it again."""
        head = {"id": self.id, "vulnerability": plain(self.vulnerability), "selected_by": plain(self.selected_by)}
        return {
            **head,
            "auc": self.auc.to_json(),
            "epsilon_lower_bound": self.epsilon.value,
            "tpr": [{"fpr": fpr, **rate.to_json()} for fpr, rate in self.tpr.items()],
            "epsilon": self.epsilon.to_json(),
            "labels": self.labels.astype(int).tolist(),
            "scores": self.scores.tolist(),
            "cpu_seconds": self.cpu_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordAudit:
        """Inverse of :meth:`to_json`."""
        cut = data["epsilon"]["cut"]
        return cls(
            data["id"],
            _number(data["vulnerability"]),
            _number(data["selected_by"]),
            _rate(data["auc"]),
            {rate["fpr"]: _rate(rate) for rate in data["tpr"]},
            EpsilonBound(**{**data["epsilon"], "cut": Cut(**cut) if cut else None}),
            np.array(data["labels"], dtype=bool),
            np.array(data["scores"], dtype=np.float64),
            data["cpu_seconds"],
        )


@dataclass(frozen=True, eq=False)
class Removal:
    """Whether others become vulnerable once the most vulnerable are gone.

    ``removed`` are ids; the most vulnerable of the other rows were attacked ``before``, with the removed rows still in
    the table, and ``after``, without them.
    """

    removed: tuple[int, ...]
    before: tuple[RecordAudit, ...]
    after: tuple[RecordAudit, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        sides = {"before": self.before, "after": self.after}
        listed = {name: [record.to_json() for record in side] for name, side in sides.items()}
        means = {f"auc_{name}": summary(side) for name, side in sides.items()}
        return {"removed": list(self.removed), **means, **listed}


@dataclass(frozen=True, eq=False)
class Audit:
    """The records in the order of their selection, and what they have in common.

    ``epsilon_lower_bound`` is the largest over the records, at 95 % for all of them together (Bonferroni).
    ``cpu_seconds`` are those of all processes, and of the runs that a checkpoint was begun in.
    """

    plan: AuditPlan
    seed: int
    records: tuple[RecordAudit, ...]
    epsilon_lower_bound: float
    removal: Removal | None
    cpu_seconds: float

    @property
    def auc(self) -> dict[str, float]:
        """Mean and standard deviation over the records, with an interval of the mean; see :func:`summary`."""
        return summary(self.records)

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping; NaN becomes None."""
        return {
            "records": [record.to_json() for record in self.records],
            "auc": plain(self.auc),
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "removal": None if self.removal is None else plain(self.removal.to_json()),
            "plan": self.plan.to_json(),
            "seed": self.seed,
            "cpu_seconds": self.cpu_seconds,
        }


def summary(records: Sequence[RecordAudit]) -> dict[str, float]:
    """AUC over records: ``mean``, ``sd`` (n - 1), and Student's 95 % interval ``low``, ``high`` of the mean.

    The interval speaks of records selected like these; NaN, and so is ``sd``, for a single record.
    """
    from scipy import stats

    values = np.array([record.auc.value for record in records])
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return {"mean": mean, "sd": math.nan, "low": math.nan, "high": math.nan}
    sd = float(values.std(ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    return {"mean": mean, "sd": sd, "low": max(mean - half, 0.0), "high": min(mean + half, 1.0)}


def _rate(data: Mapping[str, Any]) -> Rate:
    value, low, high = (_number(data[name]) for name in ("value", "low", "high"))
    return Rate(value, low, high, data.get("note", ""))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
