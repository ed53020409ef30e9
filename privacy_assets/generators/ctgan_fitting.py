"""Fitting a synthesizer of the ctgan library, sampling from what it learned, and storing that without pickle.

The library takes its random numbers from the global states of numpy and torch, which it and :func:`_alone` put back.
Sampling is our own, on the CPU and from generators of its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from privacy_assets.compute.progress import advance
from privacy_assets.errors import InputError
from privacy_assets.generators.base import FittedGenerator, Generator, Training, read_arrays, write_arrays
from privacy_assets.generators.ctgan_columns import CODE, NUMBER, Given, Span, spans_of
from privacy_assets.generators.neural import weights_of, with_weights
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    import torch
    from torch import nn

LARGEST = 1e38  # of a rate or a weight: beyond it, a short float is infinite


class LibraryGenerator(Generator):
    """A synthesizer of the ctgan library; fields are its arguments. The rows are repeatable on one machine's CPU."""

    licence = "BUSL-1.1"
    modules = ("torch", "ctgan")
    extra = "ctgan"

    epochs: int
    batch_size: int

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`: the library has none."""
        return ""

    @abstractmethod
    def synthesizer(self) -> type:
        """The class of the library."""

    @abstractmethod
    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """Losses of the last epoch in the library's table of losses."""

    @abstractmethod
    def learned(self, model: Any) -> tuple[nn.Module, np.ndarray]:
        """The network that makes rows, and shares of the conditions that it is given (all categories, or none)."""

    @abstractmethod
    def network(self, width: int, conditions: int) -> nn.Module:
        """A network of that form with ``width`` outputs."""

    @abstractmethod
    def batch(self, fitted: FittedLibrary, noise: torch.Generator, rng: np.random.RandomState) -> np.ndarray:
        """Draw ``batch_size`` rows, float64 (spans, batch_size), in the order in which the library draws."""

    def train(self, table: pd.DataFrame, codes: list[str], training: Training) -> tuple[Any, list[dict[str, float]]]:
        """Fit the library to a table without missing values; returns its model, and the losses of each epoch."""
        import torch

        history: list[dict[str, float]] = []

        def tell(values: pd.DataFrame) -> None:
            losses = self.losses(values)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise self.diverged()
            history.append({"epoch": len(history) + 1, **losses})
            advance(training.progress, f"{self.name}: epochs", len(history), self.epochs)

        state, device = _state(training.seed, 0), "cpu" if training.device.startswith("mps") else training.device
        with _alone(device, state):
            model = _reporting(self.synthesizer(), tell)(**self.settings(), enable_gpu=False)
            model._device = torch.device(device)  # the library knows no more than "a GPU or none"
            model.set_random_state(state)
            try:
                model.fit(table, codes)
            except ValueError as error:
                if "gumbel_softmax returning NaN" in str(error):
                    raise self.diverged() from None
                raise
        return model, history

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        coding = Coding.fit([train], train.schema)
        cells = coding.code(train)
        given = Given.of_cells(cells, coding)
        if len(given.parts) == 0:
            return FittedLibrary(self, coding, given, (), np.empty(0), {})
        model, history = self.train(*given.table(cells), training)
        network, conditions = self.learned(model)
        transformer = model._transformer if hasattr(model, "_transformer") else model.transformer
        fitted = FittedLibrary(self, coding, given, spans_of(transformer), conditions, weights_of(network))
        fitted.history = tuple(history)
        return fitted

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`; ValueError when a part does not fit the others."""
        arrays, coding = read_arrays(folder), Coding.of_plain(schema, manifest["values"])
        given = Given(*(arrays[field.name] for field in fields(Given)))
        conditions = arrays["conditions"]
        spans = tuple(Span(arrays[f"values.{at}"], arrays[f"deviations.{at}"]) for at in range(len(given.parts)))
        _check_parts(coding, given, spans, conditions)
        return FittedLibrary(self, coding, given, spans, conditions, arrays)

    def diverged(self) -> InputError:
        """The error of a training that came to nothing."""
        fix = "lower its learning rates, or take another seed"
        return InputError(f"the losses or weights of generator {self.name} are not finite numbers", fix=fix)


class FittedLibrary(FittedGenerator):
    """What sampling needs: the columns that were ``given``, their ``spans`` of outputs, ``conditions`` and weights."""

    generator: LibraryGenerator

    def __init__(
        self,
        generator: LibraryGenerator,
        coding: Coding,
        given: Given,
        spans: tuple[Span, ...],
        conditions: np.ndarray,
        weights: Mapping[str, np.ndarray],
    ) -> None:
        """Raises RuntimeError when the weights do not fit spans, conditions and settings; InputError for NaN."""
        import torch

        self.generator, self.schema, self.coding = generator, coding.schema, coding
        self.given, self.spans, self.conditions = given, spans, conditions
        self.network: nn.Module = torch.nn.Identity()
        if spans:
            width = sum(span.width for span in spans)
            self.network = with_weights(lambda: generator.network(width, len(conditions)), weights)
        if not all(part.isfinite().all() for part in self.network.state_dict().values()):
            raise generator.diverged()

    def draw(self, rows: int, state: int) -> np.ndarray:
        """Values float64 (C, rows) of the given columns, from two generators of random numbers that begin at ``state``.

        The library's own ``sample`` gives the same ones when its random state is ``state`` and its conditions are these
        (TVAE with more than one batch: from the same distribution). Whole batches are drawn: fewer rows are the first
        ones of more.
        """
        import torch

        from privacy_assets.embedding.network import one_thread

        if not self.spans:
            return np.empty((0, rows))
        noise, rng = torch.Generator().manual_seed(state), np.random.RandomState(state)  # the library's kind
        with one_thread(), torch.inference_mode():
            batches = [
                self.generator.batch(self, noise, rng) for _ in range(math.ceil(rows / self.generator.batch_size))
            ]
        return np.concatenate(batches, axis=1)[:, :rows]

    def _sample(self, rows: int, seed: int) -> Table:
        values = self.draw(rows, _state(seed, 1))
        if not np.isfinite(values).all():
            raise self.generator.diverged()
        return self.coding.table(self.given.cells(values))

    def _save(self, folder: Path) -> dict[str, Any]:
        arrays = {"conditions": self.conditions, **vars(self.given)}
        for at, span in enumerate(self.spans):
            arrays |= {f"values.{at}": span.values, f"deviations.{at}": span.deviations}
        write_arrays(folder, arrays | weights_of(self.network))
        return {"values": self.coding.plain_values()}


def _state(seed: int, stream: int) -> int:
    """A seed that numpy and torch both take; fitting and sampling with the same one have different ``stream``s."""
    return int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1)[0])


def _reporting(synthesizer: Any, tell: Callable[[pd.DataFrame], None]) -> Any:
    """The synthesizer, which ``tell``s its table of losses when it is given a longer one: after each epoch."""

    class Reporting(synthesizer):
        @property
        def loss_values(self) -> pd.DataFrame | None:
            return self._values

        @loss_values.setter
        def loss_values(self, values: pd.DataFrame | None) -> None:
            self._values = values
            if values is not None and len(values):
                tell(values)

    return Reporting


@contextmanager
def _alone(device: str, state: int) -> Iterator[None]:
    """One thread, no other process, and the random states of CUDA as they were; those of the CPU the library keeps.

    The number of threads would decide the last bits of sums, and with them the weights.
    """
    import joblib
    import torch
    from threadpoolctl import threadpool_limits

    from privacy_assets.embedding.network import one_thread

    cards = range(torch.cuda.device_count()) if device.startswith("cuda") else ()
    with (
        torch.random.fork_rng(cards),
        threadpool_limits(1),
        one_thread(),
        joblib.parallel_config(backend="sequential"),
    ):
        if cards:
            torch.cuda.manual_seed_all(state)
        yield


def _check_parts(coding: Coding, given: Given, spans: Sequence[Span], conditions: np.ndarray) -> None:
    """Raise ValueError when stored parts do not fit each other; the network checks its own."""
    columns, sizes = len(coding.schema.columns), coding.sizes
    sound = len(coding.values) == len(given.base) == len(given.scales) == len(given.whole) == columns
    sound &= bool(np.isfinite(given.scales).all())
    sound &= len(conditions) == 0 or bool((conditions >= 0).all() and math.isclose(conditions.sum(), 1))
    for (place, part), span in zip(given.parts.tolist(), spans, strict=True):
        if part == NUMBER:
            sound &= len(span.values) == len(span.deviations) > 0 and bool((span.deviations > 0).all())
            sound &= bool(np.isfinite([span.values, span.deviations]).all())
        else:
            most = sizes[place] - 2 if part == CODE else 1
            sound &= not span.is_number and bool(np.isin(span.values, np.arange(most + 1)).all())
    if not sound:
        raise ValueError
