"""Target attention: a membership attack on the synthetic rows (Meeus et al. 2023, appendix 0.A).
Imports torch.

The distinct rows of each synthetic table that are nearest to the target are the input of a small
network (algorithm 1), which learns to predict whether the generator was fitted to the target.

Keys and values are linear in the hidden layer of the embedding, and the softmax weights sum to 1.
The second layer of the embedding, keys and values are therefore computed once per set instead of
once per row; results are equal up to the order of summation.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from privacy_assets.distances.network import one_thread
from privacy_assets.errors import InputError
from privacy_assets.infra.progress import Progress, advance, silent
from privacy_assets.metrics.shadow_membership._kernels import closest_unique, target_distances
from privacy_assets.metrics.shadow_membership.attention import AttentionSettings, Scales
from privacy_assets.tables.encoding import MatrixCoding

_JUDGED = 200  # sets scored together, which bounds memory


class Sets:
    """Tables on a device, read from ``features`` (s, 1 + closest, A + 2).

    Stores the positions of the ones among the one-hot inputs, the other inputs, and a mask of
    existing rows. ``sizes`` int64 (A,) are the numbers of codes per attribute, 0 for numbers.
    """

    def __init__(self, features: np.ndarray, sizes: np.ndarray, device: torch.device) -> None:
        rows = torch.from_numpy(features).to(device)
        coded = torch.from_numpy(sizes > 0).to(device)
        starts = torch.from_numpy((np.cumsum(sizes) - sizes)[sizes > 0]).to(device)
        plain = torch.cat([~coded, torch.ones(2, dtype=torch.bool, device=device)])
        places, values = rows[:, :, :-2][:, :, coded].long() + starts, rows[:, :, plain]
        self.ones, self.width = int(sizes.sum()), int(sizes.sum()) + values.shape[2]
        self.places, self.values, self.there = (
            places[:, 1:].contiguous(),
            values[:, 1:].contiguous(),
            rows[:, 1:, -2] > 0,
        )
        self.target = torch.zeros(1, self.width, device=device)
        self.target[0, self.ones :] = values[0, 0]
        self.target[0, places[0, 0]] = 1.0
        self._used: tuple[Tensor, Tensor] | None = None  # inputs and the positions of their ones

    def __len__(self) -> int:
        return len(self.there)

    def inputs(self, sets: Tensor) -> Tensor:
        """Return the inputs (len(sets), rows, width) of some sets, in a buffer that the next call
        overwrites.
        """
        shape = (len(sets), self.there.shape[1], self.width)
        if self._used is not None and self._used[0].shape == shape:
            out, before = self._used
            out.scatter_(-1, before, 0.0)
        else:
            out = torch.zeros(shape, device=self.values.device)
        places = self.places[sets]
        out[..., self.ones :] = self.values[sets]
        self._used = out, places
        return out.scatter_(-1, places, 1.0)


class Network:
    """The network of algorithm 1. All weights are views of one vector, so the optimizer updates a
    single tensor.
    """

    def __init__(self, width: int, settings: AttentionSettings, generator: torch.Generator) -> None:
        s = settings
        self.settings = settings
        sizes: dict[str, tuple[int, int]] = {
            "first": (s.embedding_hidden, width),
            "second": (s.embedding, s.embedding_hidden),
            "query": (s.attention, s.embedding),
            "key": (s.attention, s.embedding),
            "value": (s.attention, s.embedding),
            "third": (s.prediction_hidden, s.attention),
            "last": (1, s.prediction_hidden),
        }
        biased = ("first", "second", "third", "last")
        self.shapes: list[tuple[int, ...]] = [
            *sizes.values(),
            *((sizes[name][0],) for name in biased),
        ]
        bounds = [shape[1] ** -0.5 for shape in sizes.values()] + [
            sizes[name][1] ** -0.5 for name in biased
        ]
        drawn = [
            # as in torch's own layers
            torch.empty(math.prod(shape)).uniform_(-bound, bound, generator=generator)
            for shape, bound in zip(self.shapes, bounds, strict=True)
        ]
        self.weights = torch.cat(drawn)

    def views(self, weights: Tensor) -> list[Tensor]:
        """Return matrices first, second, query, key, value, third, last; biases of first, second,
        third, last.
        """
        parts = weights.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def logits(
        self,
        weights: Tensor,
        rows: Tensor,
        there: Tensor,
        target: Tensor,
        dropout: torch.Generator | None = None,
    ) -> Tensor:
        """Return the log odds (b,) of membership.

        ``rows`` (b, X, width) are the inputs and ``there`` (b, X) their mask.

        Dropout is applied if ``dropout`` is a generator.
        """
        first, second, query, key, value, third, last, b1, b2, b3, b4 = self.views(weights)
        hidden = self._drop(F.relu(F.linear(rows, first, b1)), dropout)
        aim = self._drop(F.relu(F.linear(target, first, b1)).expand(len(rows), -1), dropout)
        asked = F.linear(F.linear(aim, second, b2), query)
        # <q, k_j> = (W2' Wk' q) h_j + a constant that the softmax cancels.
        towards = asked @ (key if self.settings.scores == "key" else value) @ second
        # Products and sums are faster than one matrix product per set, forward and backward.
        scores = (hidden * towards.unsqueeze(1)).sum(dim=2).masked_fill(~there, -math.inf)
        pooled = (hidden * scores.softmax(dim=1).unsqueeze(2)).sum(dim=1)
        whole = F.linear(F.linear(pooled, second, b2), value)
        return F.linear(self._drop(F.relu(F.linear(whole, third, b3)), dropout), last, b4).squeeze(
            1
        )

    def _drop(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        rate = self.settings.dropout
        if generator is None or rate == 0:
            return hidden
        scaled_mask = (
            torch.rand(hidden.shape, generator=generator, device=hidden.device)
            .ge_(rate)
            .div_(1 - rate)
        )
        return hidden * scaled_mask


class AttentionScorer:
    """A trained network; ``unseen`` float64 (s,) are the scores of the validation tables, NaN for
    training tables.
    """

    def __init__(self, run: _Run, sizes: np.ndarray, weights: Tensor) -> None:
        self.network = run.network
        self.sizes = sizes
        self.weights = weights
        self.device = run.labels.device
        self.unseen = np.full(len(run.sets), np.nan)
        judged = _scored(run.network, weights, run.sets, run.validation)
        self.unseen[run.validation.cpu().numpy()] = judged.cpu().numpy()

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the log odds of membership, float64 (t,), for the features of t synthetic
        tables.
        """
        sets = Sets(features, self.sizes, self.device)
        with one_thread():
            scores = _scored(
                self.network, self.weights, sets, torch.arange(len(sets), device=self.device)
            )
        return scores.cpu().numpy().astype(np.float64)


def train(
    features: np.ndarray,
    labels: np.ndarray,
    sizes: np.ndarray,
    settings: AttentionSettings,
    rng: np.random.Generator,
    progress: Progress,
) -> AttentionScorer:
    """Train a network; see :meth:`AttentionAttack.fit`."""
    if len(features) < 2:
        raise InputError(f"{len(features)} shadow sets to train on", fix="use at least 2")
    on = torch.device(settings.device)
    seeds = [
        torch.Generator(place).manual_seed(int(rng.integers(2**63))) for place in ("cpu", "cpu", on)
    ]
    sets = Sets(features, sizes, on)
    network = Network(sets.width, settings, seeds[0])
    run = _Run(network, sets, torch.from_numpy(labels.astype(np.float32)).to(on), *seeds[1:])
    with one_thread():
        return AttentionScorer(run, sizes, run.best(progress))


class _Run:
    def __init__(
        self,
        network: Network,
        sets: Sets,
        labels: Tensor,
        order: torch.Generator,
        dropout: torch.Generator,
    ) -> None:
        self.network = network
        self.sets = sets
        self.labels = labels
        self.order = order
        self.dropout = dropout
        self.settings = network.settings
        self.target = sets.target
        self.weights = network.weights.to(labels.device).requires_grad_()
        self.optimiser = torch.optim.Adamax([self.weights], lr=self.settings.learning_rate)
        mixed = torch.randperm(len(sets), generator=order)
        held_out = min(max(1, round(self.settings.validation * len(sets))), len(sets) - 1)
        self.validation, self.training = mixed[:held_out].to(labels.device), mixed[held_out:]

    def best(self, progress: Progress) -> Tensor:
        """Train, and return the weights with the lowest validation loss."""
        s, lowest, waited = self.settings, math.inf, 0
        best = self.weights.detach().clone()
        for epoch in range(1, s.epochs + 1):
            self._learn()
            loss = self._judged()
            if not math.isfinite(loss):
                raise InputError(
                    "the attention attack's loss is not a finite number",
                    fix="lower its learning_rate",
                )
            waited = 0 if loss < lowest else waited + 1
            if waited == 0:
                lowest, best = loss, self.weights.detach().clone()
            advance(progress, "attention: epochs", epoch, s.epochs)
            if s.patience is not None and waited >= s.patience:
                break
        advance(progress, "attention: epochs", None)
        return best

    def _learn(self) -> None:
        for sets in self.training[torch.randperm(len(self.training), generator=self.order)].split(
            self.settings.batch_size
        ):
            sets = sets.to(self.labels.device)
            with torch.autocast("cuda", torch.bfloat16, enabled=sets.device.type == "cuda"):
                logits = self.network.logits(
                    self.weights,
                    self.sets.inputs(sets),
                    self.sets.there[sets],
                    self.target,
                    self.dropout,
                )
            self.optimiser.zero_grad(set_to_none=True)
            F.binary_cross_entropy_with_logits(logits.float(), self.labels[sets]).backward()
            self.optimiser.step()

    def _judged(self) -> float:
        logits = _scored(self.network, self.weights, self.sets, self.validation)
        return float(F.binary_cross_entropy_with_logits(logits, self.labels[self.validation]))


@torch.no_grad()
def _scored(network: Network, weights: Tensor, sets: Sets, which: Tensor) -> Tensor:
    target = sets.target
    parts = [
        network.logits(weights, sets.inputs(some), sets.there[some], target)
        for some in which.split(_JUDGED)
    ]
    return torch.cat(parts)


class AttentionAttack:
    """The attack on tables of one ``coding``; numbers are scaled over ``cells`` (F, N), all known
    rows.

    It stores the scales but no rows.
    """

    def __init__(
        self, coding: MatrixCoding, cells: np.ndarray, settings: AttentionSettings | None = None
    ) -> None:
        self.settings = settings or AttentionSettings()
        self.scales = Scales.fit(cells, coding.is_number)
        # codes per attribute
        self.sizes = np.concatenate([coding.sizes, np.full(len(self.scales.missing), 2)])

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return float32 (1 + closest, A + 2): the target, then the nearest distinct rows of
        ``cells`` (F, m), m >= 1.

        A row contains its A attributes (numbers, and codes of categories), its multiplicity (0 for
        padding) and its generalized cosine distance to the target (eq. 5, without constant
        attributes). A missing number is replaced by the mean, with an additional category for
        missing. Rows at the same distance are ordered by content, so the order of the columns of
        ``cells`` does not matter.
        """
        scales, varies = self.scales, self.scales.varies
        rows, aim = scales.apply(cells), scales.apply(target[:, None])
        distances = target_distances(rows[varies], aim[varies, 0], self.sizes[varies] == 0)
        positions, counts = closest_unique(rows, distances, self.settings.closest)
        nearest = rows[:, positions]
        if self.settings.scale == "none":
            nearest, aim = scales.undo(nearest), scales.undo(aim)
        out = np.zeros((1 + self.settings.closest, len(rows) + 2), dtype=np.float32)
        out[0, :-2] = aim[:, 0]
        out[0, -2] = 1
        filled = out[1 : 1 + len(positions)]
        filled[:, :-2] = nearest.T
        filled[:, -2] = counts
        filled[:, -1] = distances[positions]
        return out

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> AttentionScorer:
        """Train on ``features`` (s, 1 + closest, A + 2) of s >= 2 tables and their labels bool
        (s,).

        A randomly drawn share of tables is used only to select the epoch. Scores are log odds of
        membership. The same arguments and state of ``rng`` give the same scores on one machine.
        Raises InputError if the loss is not finite.
        """
        return train(features, labels, self.sizes, self.settings, rng, progress)
