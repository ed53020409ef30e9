"""Whom the rows of a synthetic table are closest to, searched once; what ``dcr`` counts, and controls count again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.neighbours.nearest import distinct_encoded, nearest_rows
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.encoding import EncodedTable

ROLES = ("train", "holdout", "synthetic")


@dataclass(frozen=True, eq=False)
class Space:
    """Distances in one space; ``groups`` (N,) number the distinct rows of T u H.

    ``srd`` (n_S,) and ``rrd`` (n_H,), or of some rows of H, are distances to T. ``matched`` (n_S,) is the row of T u H
    nearest to each synthetic row, ``alone`` (n_S,) its leave-one-out distance in T u H, ``keys`` (n_S,) what synthetic
    rows are ranked by.
    """

    name: str
    srd: np.ndarray
    rrd: np.ndarray
    groups: np.ndarray
    matched: np.ndarray
    alone: np.ndarray
    keys: dict[str, np.ndarray]

    @classmethod
    def of(cls, name: str, tables: Sequence[EncodedTable], device: str, unseen: np.ndarray | None = None) -> Space:
        """Search T u H, blind to who is in T; then T alone, where the nearest row is not there.

        ``unseen`` are the rows of H that ``rrd`` is of, all when None.
        """
        train, holdout, synthetic = tables
        unique, groups = distinct_encoded(EncodedTable.stack([train, holdout]))
        in_train = np.zeros(len(unique), dtype=bool)
        in_train[groups[: len(train)]] = True
        pooled = nearest_rows(synthetic, unique, device=device)
        matched, distance = pooled.indices[:, 0], pooled.distances[:, 0]
        srd, elsewhere = distance.astype(np.float32), ~in_train[matched]
        members = unique.take(in_train)
        srd[elsewhere] = nearest_rows(synthetic.take(elsewhere), members, device=device).distances[:, 0]
        asked = holdout if unseen is None else holdout.take(unseen)
        rrd = nearest_rows(asked, members, device=device).distances[:, 0].astype(np.float32)
        alone = _alone(unique, np.bincount(groups), matched, device)
        ratio = np.divide(distance, alone, out=np.full(len(distance), np.inf), where=alone > 0)
        return cls(name, srd, rrd, groups, matched, alone, {"distance": distance, "ratio": ratio})

    def take(self, rows: np.ndarray) -> Space:
        """The same for a synthetic table of the given rows of this one."""
        keys = {name: values[rows] for name, values in self.keys.items()}
        return replace(self, srd=self.srd[rows], matched=self.matched[rows], alone=self.alone[rows], keys=keys)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows of T u H that each distinct one stands for, int64."""
        return np.bincount(self.groups)

    def closest(self, key: str, tail: float, least: int = 0) -> np.ndarray:
        """Distinct rows of T u H matched by the ``tail`` of S with the smallest finite key, or by more: for ``least``.

        At one key the row whose match stands farther from other real rows comes first, then content decides.
        """
        matched, first = self._ranked[key]
        wanted = max(1, round(tail * len(self.matched)), *(first[:least] + 1))
        return np.unique(matched[:wanted])

    @cached_property
    def _ranked(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By key: rows matched, closest first, and the places where each stands first."""
        found = {}
        for key, values in self.keys.items():
            ranking = np.lexsort((self.matched, -self.alone, values))
            matched = self.matched[ranking[np.isfinite(values[ranking])]]
            found[key] = matched, np.sort(np.unique(matched, return_index=True)[1])
        return found


def _alone(unique: EncodedTable, counts: np.ndarray, matched: np.ndarray, device: str) -> np.ndarray:
    """Leave-one-out distance inside T u H of each matched row; 0 for a row that stands more than once."""
    asked = np.unique(matched)
    asked = asked[counts[asked] == 1]
    alone = np.zeros(len(unique))
    alone[asked] = nearest_rows(unique.take(asked), unique, k=2, device=device).distances[:, 1]
    return alone[matched]


@dataclass(frozen=True, eq=False)
class Matches:
    """A synthetic table as label-conditional statistics of closeness see it.

    ``real`` (N,) and ``synthetic`` (n_S,) are row ids of T stacked on H, and of S; ``people`` says whose the real rows
    are and who of them is a member.
    """

    spaces: tuple[Space, ...]
    people: Subjects
    real: np.ndarray
    synthetic: np.ndarray

    @classmethod
    def of(cls, inputs: MetricInputs, unseen: np.ndarray | None = None) -> Matches:
        """Search in the raw space and, with an embedder, in the embedded one; no table may be empty.

        ``unseen``: see :meth:`Space.of`.
        """
        spaces = [Space.of("raw", [inputs.encoded(role) for role in ROLES], inputs.device, unseen)]
        if inputs.embedder is not None:
            embedded = [EncodedTable.of_numbers(inputs.embedded(role)) for role in ROLES]
            spaces.append(Space.of("embedded", embedded, inputs.device, unseen))
        people = Subjects.of(inputs.subject_codes("train", "holdout"), len(inputs.train))
        real = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
        return cls(tuple(spaces), people, real, inputs.row_ids["synthetic"])

    def take(self, rows: np.ndarray) -> Matches:
        """The same for a synthetic table of the given rows of this one."""
        spaces = tuple(space.take(rows) for space in self.spaces)
        return replace(self, spaces=spaces, synthetic=self.synthetic[rows])

    def relabelled(self, member: np.ndarray) -> Matches:
        """The same with other people in T, bool (s,); distances to T alone then mean nothing."""
        return replace(self, people=self.people.relabelled(member))
