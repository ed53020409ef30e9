"""The network of the contrastive embedder: maskings, layers and loss (Palacios 4.1, 5.2). Imports
torch.

All draws use the generator passed by the caller; torch's global random state is neither read nor
changed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.adam import adam

from privacy_assets.distances.embedder_settings import EmbedderSettings, Epoch
from privacy_assets.errors import InputError
from privacy_assets.infra.devices import halve_on_out_of_memory
from privacy_assets.infra.progress import Progress, advance

_CATEGORY_DIMS = 8  # dimension of the vector of a cell's code
HIDDEN_LAYERS = 3


class EmbedderNetwork(nn.Module):
    """Map rows of a table to unit vectors.

    Every cell has a code; numeric cells also have a value. ``sizes`` are the numbers of codes per
    column, the last of which means "masked". The first ``numbers`` columns have values. The input
    consists of these values and an embedding of each cell's code. Three blocks (linear, layer norm,
    GELU, dropout) are followed by a linear layer with ``dims`` outputs.
    """

    starts: Tensor
    masked: Tensor

    def __init__(
        self, sizes: Sequence[int], numbers: int, width: int, dims: int, dropout: float
    ) -> None:
        super().__init__()
        self.numbers = numbers
        self.dropout = dropout
        ends = torch.tensor(list(sizes)).cumsum(0)
        # Rows in the table of code vectors: first row of each column, and last row, which means
        # "masked".
        self.register_buffer("starts", ends - torch.tensor(list(sizes)), persistent=False)
        self.register_buffer("masked", ends - 1, persistent=False)
        # The "meta" device creates layers without drawing weights from the global generator.
        rows = int(ends[-1])
        # With given weights the layer draws none; drawing them on "meta" would import torch's
        # compiler.
        self.cells = nn.Embedding(
            rows, _CATEGORY_DIMS, _weight=torch.empty(rows, _CATEGORY_DIMS, device="meta")
        )
        inputs = [numbers + len(sizes) * _CATEGORY_DIMS] + [width] * (HIDDEN_LAYERS - 1)
        self.layers = nn.ModuleList(nn.Linear(size, width, device="meta") for size in inputs)
        self.norms = nn.ModuleList(nn.LayerNorm(width, device="meta") for _ in inputs)
        self.last = nn.Linear(width, dims, device="meta")

    def initialize(self, generator: torch.Generator) -> None:
        """Initialize the weights on the CPU from torch's default distributions."""
        with torch.no_grad():
            for module in self.modules():
                # Module.to_empty would import torch's symbolic shapes.
                for name, parameter in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(torch.empty(parameter.shape)))
                if isinstance(module, nn.Linear):
                    bound = module.in_features**-0.5
                    module.weight.uniform_(-bound, bound, generator=generator)
                    module.bias.uniform_(-bound, bound, generator=generator)
                elif isinstance(module, nn.Embedding):
                    module.weight.normal_(generator=generator)
                elif isinstance(module, nn.LayerNorm):
                    module.reset_parameters()

    def forward(
        self,
        values: Tensor,
        codes: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Embed rows.

        Args:
            values: float of shape (n, numbers).
            codes: int64 of shape (n, columns).
            mask: True for masked cells, shape (n, columns). None: no cell is masked.
            generator: Generator of the dropout. None: no dropout.

        Returns:
            Unit vectors of shape (n, dims).
        """
        rows = codes + self.starts
        if mask is not None:
            rows = torch.where(mask, self.masked, rows)
            values = values.masked_fill(mask[:, : self.numbers], 0.0)
        vectors = self.cells(rows).flatten(1)
        hidden = torch.cat([values, vectors], dim=1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = F.gelu(norm(layer(hidden)))
            if generator is not None and self.dropout > 0:
                mask_of_units = torch.empty_like(hidden)
                mask_of_units.bernoulli_(1 - self.dropout, generator=generator)
                hidden = hidden * mask_of_units.div_(1 - self.dropout)
        out = self.last(hidden)
        if out.dtype != torch.float64:
            out = out.float()
        return F.normalize(out, dim=1)


def draw_mask(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draw a mask with 1 to columns - 1 masked cells per row, number and positions uniform.

    Args:
        rows: Number of rows.
        columns: Number of columns, at least 1. A table with one column is not masked; its two views
            differ by dropout only.
        generator: Source of the draws, on the device of the mask.

    Returns:
        True for masked cells, shape (rows, columns).
    """
    device = generator.device
    if columns == 1:
        return torch.zeros(rows, 1, dtype=torch.bool, device=device)
    number = torch.randint(1, columns, (rows, 1), generator=generator, device=device)
    draws = torch.rand(rows, columns, generator=generator, device=device)
    ranks = draws.argsort(dim=1)
    return ranks < number


def view_logits(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the cosine similarities of two views of n rows, divided by the temperature.

    Args:
        first: Unit vectors of the first views, shape (n, dims).
        second: Unit vectors of the second views, shape (n, dims).
        temperature: Positive number.

    Returns:
        Logits of shape (n, n), first views by second views.
    """
    return first @ second.T / temperature


def contrastive_loss(logits: Tensor) -> Tensor:
    """Return the loss of matching the first view of each row to its second view within the batch.

    Args:
        logits: See :func:`view_logits`, shape (n, n).

    Returns:
        Mean cross-entropy in nats, of shape ().
    """
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def contrastive_accuracy(logits: Tensor) -> Tensor:
    """Return the accuracy of matching views by their similarity.

    Args:
        logits: See :func:`view_logits`, shape (n, n).

    Returns:
        Share of rows whose own second view is the most similar one, of shape ().
    """
    own_views = torch.arange(len(logits), device=logits.device)
    is_correct = logits.argmax(dim=1) == own_views
    return is_correct.float().mean()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one CPU thread within the ``with`` block.

    The limit applies to the whole process, because torch has no narrower one. For batches of this
    size threads cost more than they save (training with two threads took five times the CPU time on
    a busy machine), and sums split by thread would make the weights depend on the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_WORK = "training the embedder: steps"
_HELD_OUT = 0.1  # share of rows used only for early stopping
_SMALLEST = 20  # minimum number of rows for a validation set


class Trainer:
    """One training run; :meth:`run` stores the best weights in ``network``.

    ``values`` float32 (n, numbers) and ``codes`` int64 (n, columns) contain all rows, in an order
    that depends only on content. At most ``max_rows`` randomly drawn rows are used. A tenth of them
    is the validation set, evaluated with the same maskings after each epoch; with fewer than 20
    rows there is none, and the training loss is monitored. The weights with the lowest monitored
    loss are kept. Batches within an epoch have equal sizes, because a smaller last batch would be
    an easier task. The last epoch is truncated to the remaining steps. On CUDA the layers run in
    bfloat16.
    """

    def __init__(
        self,
        network: EmbedderNetwork,
        settings: EmbedderSettings,
        values: Tensor,
        codes: Tensor,
        seed: int,
        device: str,
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.progress = progress
        self.batch_size = settings.batch_size
        self.device = torch.device(device)
        weights, order, self.validation_seed = (
            np.random.SeedSequence(seed).generate_state(3).tolist()
        )
        network.initialize(torch.Generator().manual_seed(weights))
        self.network = network.to(self.device)
        self.values = values.to(self.device)
        self.codes = codes.to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(order)
        rows = torch.randperm(len(codes), generator=self.generator, device=self.device)
        rows = rows[: settings.max_rows]
        n_validation = 0
        if len(rows) >= _SMALLEST:
            n_validation = int(_HELD_OUT * len(rows))
        self.validation = rows[:n_validation]
        self.training = rows[n_validation:]
        self.steps = 0
        self.optimizer = _Adam(network.parameters(), settings.learning_rate)

    def run(self) -> tuple[Epoch, ...]:
        """Train until early stopping or the last epoch, and return the history."""
        history: list[Epoch] = []
        monitored: list[float] = []
        best_weights = copy.deepcopy(self.network.state_dict())
        best_mean = math.inf
        waited = 0
        with one_thread():
            while (
                len(history) < self.settings.max_epochs
                and waited < self.settings.patience
                and self._remaining() > 0
            ):
                epoch = self._epoch(len(history) + 1)
                history.append(epoch)
                monitored.append(epoch.monitored)
                if monitored[-1] <= min(monitored):
                    best_weights = copy.deepcopy(self.network.state_dict())
                window = monitored[-self.settings.window :]
                mean = sum(window) / len(window)
                waited = 0 if mean < best_mean else waited + 1
                best_mean = min(best_mean, mean)
        advance(self.progress, _WORK, None)
        self.network.load_state_dict(best_weights)
        return tuple(history)

    def _epoch(self, number: int) -> Epoch:
        order = torch.randperm(len(self.training), generator=self.generator, device=self.device)
        rows = self.training[order]
        loss, _ = self._over(rows[: self._remaining()], self._learn)
        if not math.isfinite(loss):
            raise InputError(
                "the embedder's loss is not a finite number", fix="lower its learning_rate"
            )
        if len(self.validation) == 0:
            return Epoch(number, loss, None, None)
        views = torch.Generator(self.device).manual_seed(self.validation_seed)
        validation_loss, accuracy = self._over(self.validation, partial(self._judge, views))
        return Epoch(number, loss, validation_loss, accuracy)

    def _remaining(self) -> int:
        """Return the number of rows of the next epoch: all, or as many whole batches as steps
        remain.
        """
        rows = len(self.training)
        remaining_steps = self._most() - self.steps
        return min(remaining_steps * _even(rows, self.batch_size), rows)

    def _most(self) -> int:
        """Return the maximum number of steps."""
        n_batches = math.ceil(len(self.training) / self.batch_size)
        steps = self.settings.max_epochs * n_batches
        return min(self.settings.max_steps or steps, steps)

    def _over(self, rows: Tensor, step: Callable[[Tensor], Tensor]) -> list[float]:
        """Average the two values of ``step`` over ``rows``, in equal batches, halved when memory
        runs out.
        """
        total = torch.zeros(2, device=self.device)
        start = 0
        size = _even(len(rows), self.batch_size)
        while start < len(rows):
            losses, fitted = halve_on_out_of_memory(
                partial(_first, step, rows[start:]), size, minimum=2
            )
            if fitted < size:
                self.batch_size = size = fitted
            total += losses * min(size, len(rows) - start)
            start += size
        means: list[float] = (total / len(rows)).tolist()
        return means

    def _learn(self, rows: Tensor) -> Tensor:
        """Take one gradient step and return the loss, and 0 as an unused accuracy."""
        loss = contrastive_loss(self._logits(rows, self.generator, self.generator))
        self.network.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        advance(self.progress, _WORK, self.steps, self._most())
        return torch.stack([loss.detach(), torch.zeros_like(loss)])

    @torch.no_grad()
    def _judge(self, generator: torch.Generator, rows: Tensor) -> Tensor:
        """Return loss and accuracy without dropout."""
        logits = self._logits(rows, generator, None)
        return torch.stack([contrastive_loss(logits), contrastive_accuracy(logits)])

    def _logits(
        self, rows: Tensor, generator: torch.Generator, dropout: torch.Generator | None
    ) -> Tensor:
        """Return the logits of two maskings of each row, computed in one pass through the
        network.
        """
        twice = torch.cat([rows, rows])
        mask = draw_mask(len(twice), self.codes.shape[1], generator)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            first, second = self.network(
                self.values[twice], self.codes[twice], mask, dropout
            ).chunk(2)
        return view_logits(first, second, self.settings.temperature)


class _Adam:
    """``torch.optim.Adam`` with its default settings. That class imports torch's compiler, which
    takes 2 CPU s.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = [torch.tensor(0.0) for _ in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Take one step along the gradients of the parameters, all of which must have one."""
        gradients = [cast("Tensor", parameter.grad) for parameter in self.parameters]
        adam(
            list(self.parameters),
            gradients,
            self.means,
            self.squares,
            max_exp_avg_sqs=[],
            state_steps=self.steps,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def _first(step: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    return step(rows[:size])


def _even(rows: int, batch_size: int) -> int:
    """Return the batch size that splits ``rows`` into the fewest equal batches of at most
    ``batch_size``.
    """
    return math.ceil(rows / math.ceil(rows / batch_size))
