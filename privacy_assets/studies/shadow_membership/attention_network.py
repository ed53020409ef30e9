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
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from privacy_assets.distances.network import one_thread
from privacy_assets.errors import InputError
from privacy_assets.infra.progress import Progress, advance, silent
from privacy_assets.studies.shadow_membership._kernels import closest_unique, target_distances
from privacy_assets.studies.shadow_membership.attention import AttentionSettings, Scales
from privacy_assets.tables.encoding import MatrixCoding

_MAX_SETS = 200  # sets scored together, which bounds memory


class _Inputs(NamedTuple):
    """One-hot and other inputs (b, rows, width), and the positions of their ones."""

    values: Tensor
    ones: Tensor


class Sets:
    """Tables on a device.

    Stores the positions of the ones among the one-hot inputs, the other inputs, and a mask of
    existing rows.

    Args:
        features: Features of the tables, float32 (s, 1 + closest, A + 2); see
            :meth:`AttentionAttack.features`.
        sizes: Number of codes of each attribute, int64 (A,). 0: a number.
        device: The device.
    """

    def __init__(self, features: np.ndarray, sizes: np.ndarray, device: torch.device) -> None:
        rows = torch.from_numpy(features).to(device)
        is_category = sizes > 0
        first_inputs = (np.cumsum(sizes) - sizes)[is_category]
        coded = torch.from_numpy(is_category).to(device)
        # multiplicity and distance follow the attributes
        plain = torch.cat([~coded, torch.ones(2, dtype=torch.bool, device=device)])
        ones = rows[:, :, :-2][:, :, coded].long() + torch.from_numpy(first_inputs).to(device)
        values = rows[:, :, plain]
        self.n_one_hot = int(sizes.sum())
        self.width = self.n_one_hot + values.shape[2]
        self.ones = ones[:, 1:].contiguous()
        self.values = values[:, 1:].contiguous()
        self.exists = rows[:, 1:, -2] > 0
        self.target = torch.zeros(1, self.width, device=device)
        self.target[0, self.n_one_hot :] = values[0, 0]
        self.target[0, ones[0, 0]] = 1.0
        self._buffer: _Inputs | None = None

    def __len__(self) -> int:
        return len(self.exists)

    def inputs(self, sets: Tensor) -> Tensor:
        """Compute the inputs of some sets.

        Args:
            sets: Positions of the sets, int64 (b,).

        Returns:
            Inputs, float32 (b, rows, width), in a buffer that the next call overwrites.
        """
        shape = (len(sets), self.exists.shape[1], self.width)
        if self._buffer is not None and self._buffer.values.shape == shape:
            inputs = self._buffer.values
            inputs.scatter_(-1, self._buffer.ones, 0.0)
        else:
            inputs = torch.zeros(shape, device=self.values.device)
        ones = self.ones[sets]
        inputs[..., self.n_one_hot :] = self.values[sets]
        self._buffer = _Inputs(inputs, ones)
        return inputs.scatter_(-1, ones, 1.0)


class Network:
    """The network of algorithm 1. All weights are views of one vector, so the optimizer updates a
    single tensor.

    Args:
        width: Number of inputs of a row.
        settings: Settings of the attack.
        generator: Generator of the initial weights.
    """

    def __init__(self, width: int, settings: AttentionSettings, generator: torch.Generator) -> None:
        self.settings = settings
        matrices: dict[str, tuple[int, int]] = {
            "first": (settings.embedding_hidden, width),
            "second": (settings.embedding, settings.embedding_hidden),
            "query": (settings.attention, settings.embedding),
            "key": (settings.attention, settings.embedding),
            "value": (settings.attention, settings.embedding),
            "third": (settings.prediction_hidden, settings.attention),
            "last": (1, settings.prediction_hidden),
        }
        with_bias = [matrices[name] for name in ("first", "second", "third", "last")]
        self.shapes: list[tuple[int, ...]] = list(matrices.values())
        self.shapes += [(n_outputs,) for n_outputs, _ in with_bias]
        n_inputs = [columns for _, columns in (*matrices.values(), *with_bias)]

        initial = []
        for shape, columns in zip(self.shapes, n_inputs, strict=True):
            bound = columns**-0.5  # as in torch's own layers
            weights = torch.empty(math.prod(shape)).uniform_(-bound, bound, generator=generator)
            initial.append(weights)
        self.weights = torch.cat(initial)

    def views(self, weights: Tensor) -> list[Tensor]:
        """Split the vector of weights.

        Args:
            weights: All weights, shape (w,).

        Returns:
            Matrices first, second, query, key, value, third, last; biases of first, second, third,
            last.
        """
        parts = weights.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def logits(
        self,
        weights: Tensor,
        rows: Tensor,
        exists: Tensor,
        target: Tensor,
        dropout: torch.Generator | None = None,
    ) -> Tensor:
        """Compute the log odds of membership.

        Args:
            weights: All weights, see :meth:`views`.
            rows: Inputs of the sets, shape (b, X, width).
            exists: False for padding rows, bool (b, X).
            target: Inputs of the target, shape (1, width).
            dropout: Generator of the dropout. None: no dropout.

        Returns:
            The log odds, shape (b,).
        """
        first, second, query, key, value, third, last, b1, b2, b3, b4 = self.views(weights)
        row_hidden = self._drop(F.relu(F.linear(rows, first, b1)), dropout)
        target_hidden = F.relu(F.linear(target, first, b1)).expand(len(rows), -1)
        target_hidden = self._drop(target_hidden, dropout)
        target_query = F.linear(F.linear(target_hidden, second, b2), query)
        score_matrix = value
        if self.settings.scores == "key":
            score_matrix = key
        # <q, k_j> = (W2' Wk' q) h_j + a constant that the softmax cancels.
        direction = target_query @ score_matrix @ second
        # Products and sums are faster than one matrix product per set, forward and backward.
        scores = (row_hidden * direction.unsqueeze(1)).sum(dim=2)
        shares = scores.masked_fill(~exists, -math.inf).softmax(dim=1)
        pooled = (row_hidden * shares.unsqueeze(2)).sum(dim=1)
        attended = F.linear(F.linear(pooled, second, b2), value)
        hidden = self._drop(F.relu(F.linear(attended, third, b3)), dropout)
        return F.linear(hidden, last, b4).squeeze(1)

    def _drop(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        rate = self.settings.dropout
        if generator is None or rate == 0:
            return hidden
        uniform = torch.rand(hidden.shape, generator=generator, device=hidden.device)
        scaled_mask = uniform.ge_(rate).div_(1 - rate)
        return hidden * scaled_mask


class AttentionScorer:
    """A trained network; ``held_out_scores`` float64 (s,) are the scores of the validation
    tables, NaN for training tables.
    """

    def __init__(self, run: _Run, sizes: np.ndarray, weights: Tensor) -> None:
        self.network = run.network
        self.sizes = sizes
        self.weights = weights
        self.device = run.labels.device
        self.held_out_scores = np.full(len(run.sets), np.nan)
        logits = _score(run.network, weights, run.sets, run.validation)
        self.held_out_scores[run.validation.cpu().numpy()] = logits.cpu().numpy()

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the log odds of membership, float64 (t,), for the features of t synthetic
        tables.
        """
        sets = Sets(features, self.sizes, self.device)
        set_ids = torch.arange(len(sets), device=self.device)
        with one_thread():
            scores = _score(self.network, self.weights, sets, set_ids)
        return scores.cpu().numpy().astype(np.float64)


def train(
    features: np.ndarray,
    labels: np.ndarray,
    sizes: np.ndarray,
    settings: AttentionSettings,
    rng: np.random.Generator,
    progress: Progress,
) -> AttentionScorer:
    """Train a network; see :meth:`AttentionAttack.fit`.

    Args:
        features: Features of the tables, float32 (s, 1 + closest, A + 2).
        labels: Labels of the tables, bool (s,).
        sizes: Number of codes of each attribute, int64 (A,). 0: a number.
        settings: Settings of the attack.
        rng: Generator of all seeds.
        progress: Called with messages and counts.

    Returns:
        The network with its weights.

    Raises:
        InputError: If there are fewer than two tables, or the loss is not finite.
    """
    if len(features) < 2:
        raise InputError(f"{len(features)} shadow sets to train on", fix="use at least 2")
    device = torch.device(settings.device)
    initial = _generator("cpu", rng)
    order = _generator("cpu", rng)
    dropout = _generator(device, rng)
    sets = Sets(features, sizes, device)
    network = Network(sets.width, settings, initial)
    member = torch.from_numpy(labels.astype(np.float32)).to(device)
    run = _Run(network, sets, member, order, dropout)
    with one_thread():
        return AttentionScorer(run, sizes, run.best(progress))


def _generator(device: torch.device | str, rng: np.random.Generator) -> torch.Generator:
    """Return a generator on a device, with a seed drawn from ``rng``."""
    return torch.Generator(device).manual_seed(int(rng.integers(2**63)))


class _Run:
    """A training run: weights, optimizer, and the shares of sets for training and validation.

    Args:
        network: The network.
        sets: All sets.
        labels: Labels of the sets, float32 (s,). 1: member.
        order: Generator of the shares and batches.
        dropout: Generator of the dropout, on the device of the sets.
    """

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
        self.optimizer = torch.optim.Adamax([self.weights], lr=self.settings.learning_rate)
        set_ids = torch.randperm(len(sets), generator=order)
        n_validation = max(1, round(self.settings.validation * len(sets)))
        n_validation = min(n_validation, len(sets) - 1)
        self.validation = set_ids[:n_validation].to(labels.device)
        self.training = set_ids[n_validation:]

    def best(self, progress: Progress) -> Tensor:
        """Train, and return the weights with the lowest validation loss."""
        n_epochs = self.settings.epochs
        patience = self.settings.patience
        lowest_loss = math.inf
        n_waited = 0
        best = self.weights.detach().clone()
        for epoch in range(1, n_epochs + 1):
            self._train_epoch()
            loss = self._validation_loss()
            if not math.isfinite(loss):
                raise InputError(
                    "the attention attack's loss is not a finite number",
                    fix="lower its learning_rate",
                )
            if loss < lowest_loss:
                lowest_loss = loss
                best = self.weights.detach().clone()
                n_waited = 0
            else:
                n_waited += 1
            advance(progress, "attention: epochs", epoch, n_epochs)
            if patience is not None and n_waited >= patience:
                break
        advance(progress, "attention: epochs", None)
        return best

    def _train_epoch(self) -> None:
        shuffled = self.training[torch.randperm(len(self.training), generator=self.order)]
        for batch in shuffled.split(self.settings.batch_size):
            set_ids = batch.to(self.labels.device)
            with torch.autocast("cuda", torch.bfloat16, enabled=set_ids.device.type == "cuda"):
                logits = self.network.logits(
                    self.weights,
                    self.sets.inputs(set_ids),
                    self.sets.exists[set_ids],
                    self.target,
                    self.dropout,
                )
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.binary_cross_entropy_with_logits(logits.float(), self.labels[set_ids])
            loss.backward()
            self.optimizer.step()

    def _validation_loss(self) -> float:
        logits = _score(self.network, self.weights, self.sets, self.validation)
        return float(F.binary_cross_entropy_with_logits(logits, self.labels[self.validation]))


@torch.no_grad()
def _score(network: Network, weights: Tensor, sets: Sets, set_ids: Tensor) -> Tensor:
    """Return the log odds of membership of some sets, shape (b,)."""
    logits = []
    for batch in set_ids.split(_MAX_SETS):
        inputs = sets.inputs(batch)
        logits.append(network.logits(weights, inputs, sets.exists[batch], sets.target))
    return torch.cat(logits)


class AttentionAttack:
    """The attack on tables of one coding. It stores the scales but no rows.

    Args:
        coding: Coding of the tables.
        cells: All real rows, over which numbers are scaled, shape (F, N).
        settings: Settings. None: the defaults.
    """

    def __init__(
        self, coding: MatrixCoding, cells: np.ndarray, settings: AttentionSettings | None = None
    ) -> None:
        self.settings = settings or AttentionSettings()
        self.scales = Scales.fit(cells, coding.is_number)
        # codes per attribute
        self.sizes = np.concatenate([coding.sizes, np.full(len(self.scales.missing), 2)])

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Describe a synthetic table by its distinct rows nearest to the target.

        A row contains its A attributes (numbers, and codes of categories), its multiplicity (0 for
        padding) and its generalized cosine distance to the target (eq. 5, without constant
        attributes). A missing number is replaced by the mean, with an additional category for
        missing. Rows at the same distance are ordered by content, so the order of the columns of
        ``cells`` does not matter.

        Args:
            cells: The table, shape (F, m), m >= 1.
            target: Cells of the target, shape (F,).

        Returns:
            The target, then the nearest rows, float32 (1 + closest, A + 2).
        """
        scales = self.scales
        varies = scales.varies
        n_closest = self.settings.closest
        rows = scales.apply(cells)
        target_row = scales.apply(target[:, None])
        is_number = self.sizes[varies] == 0
        distances = target_distances(rows[varies], target_row[varies, 0], is_number)
        positions, counts = closest_unique(rows, distances, n_closest)
        nearest = rows[:, positions]
        if self.settings.scale == "none":
            nearest = scales.undo(nearest)
            target_row = scales.undo(target_row)
        features = np.zeros((1 + n_closest, len(rows) + 2), dtype=np.float32)
        features[0, :-2] = target_row[:, 0]
        features[0, -2] = 1
        filled = features[1 : 1 + len(positions)]
        filled[:, :-2] = nearest.T
        filled[:, -2] = counts
        filled[:, -1] = distances[positions]
        return features

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> AttentionScorer:
        """Train a network to tell tables with the target from tables without it.

        A randomly drawn share of tables is used only to select the epoch. The same arguments and
        state of ``rng`` give the same scores on one machine.

        Args:
            features: Features of the tables, float32 (s, 1 + closest, A + 2), s >= 2.
            labels: Labels of the tables, bool (s,).
            rng: Generator of all seeds.
            progress: Called with messages and counts.

        Returns:
            Scorer of tables, by the log odds of membership.

        Raises:
            InputError: If there are fewer than two tables, or the loss is not finite.
        """
        return train(features, labels, self.sizes, self.settings, rng, progress)
