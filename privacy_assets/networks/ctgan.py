"""CTGAN and TVAE (Xu et al., Modeling tabular data using conditional GAN, 2019), fitted and sampled
by their library.

The library is imported late, because its license (BUSL-1.1) differs from that of this package. It
draws from the global random states of numpy and torch, which are restored afterwards. A fitted
model is stored as arrays: the library's own file is a pickle, which could run code when it is
loaded.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import (
    FittedGenerator,
    Generator,
    Training,
    read_arrays,
    write_arrays,
)
from privacy_assets.infra.progress import advance
from privacy_assets.infra.settings import Layers, declared
from privacy_assets.networks.neural import weights_of, with_weights
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from torch import nn

NUMBER = 0
CODE = 1
MISSING = 2
_MAX_SETTING = 1e38  # maximum of a rate or a weight, below the overflow of float32
# of the one-hot matrix that the library builds; it keeps three of them, 2 GiB each
_MAX_CELLS = 2**28
_MAX_COMPONENTS = 10
_N_BLOCK_ROWS = 2**16  # per call of the library's ``sample``, which keeps all network outputs
_DEVIATION = 1e4  # standard deviation to which numbers are scaled
_N_COMPONENT_DEVIATIONS = 4  # number of standard deviations that an output of 1 represents
_FITTING = 0  # streams of seeds
_SAMPLING = 1


@dataclass(frozen=True, eq=False)
class LibraryColumns:
    """The C columns that the library is trained on, derived from the cells (F, n) of a
    :class:`MatrixCoding`.

    Columns with a single distinct cell are excluded from training and are constant in the output.
    Numbers are scaled to mean 0 and standard deviation 10,000, by (x / size - center) / deviation,
    because the library's mixture components have a minimum standard deviation of 0.001. Missing
    numbers are 0.

    Attributes:
        base: First non-missing cell of each column (NaN if none), shape (F,). Constant columns of
            the output equal it.
        parts: Position in the schema and part, int64 of shape (C, 2). The part is NUMBER, CODE (of
            a category) or MISSING (1 if missing, otherwise 0; for numbers with missing values).
        scales: Size, center, deviation, low and high of each number, shape (F, 5). Size is the
            largest absolute value. After division by it, center is the mean and deviation the
            standard deviation / 10,000. Low and high are the observed minimum and maximum.
        is_whole_day: True for datetimes without a time of day, bool of shape (F,).
    """

    base: np.ndarray
    parts: np.ndarray
    scales: np.ndarray
    is_whole_day: np.ndarray

    @classmethod
    def fit(cls, cells: np.ndarray, coding: MatrixCoding) -> LibraryColumns:
        """Determine the columns.

        Args:
            cells: Cells, float64 of shape (F, n), n >= 1.
            coding: Coding of the cells.

        Raises:
            InputError: If there are too many categories for the available memory.
        """
        base = cells[:, 0].copy()
        parts = []
        scales = np.ones((len(cells), 5))
        is_whole_day = np.zeros(len(cells), dtype=np.bool_)
        for i, column_cells in enumerate(cells):
            values = column_cells[~np.isnan(column_cells)]
            if values.size == 0:
                continue
            base[i] = values[0]
            if values.min() < values.max():
                parts.append((i, NUMBER if coding.is_number[i] else CODE))
                scales[i] = _scale(values)
            if values.size < column_cells.size:
                parts.append((i, MISSING))
            if coding.schema.columns[i].kind == "datetime":
                is_whole_day[i] = (values == np.floor(values)).all()
        columns = cls(base, np.array(parts, dtype=np.int64).reshape(-1, 2), scales, is_whole_day)
        columns._check_width(cells, coding)
        return columns

    def _check_width(self, cells: np.ndarray, coding: MatrixCoding) -> None:
        n_rows = cells.shape[1]
        widths = []
        for i, part in self.parts:
            if part == CODE:
                widths.append(len(np.unique(cells[i])))
            else:
                widths.append(1 + _MAX_COMPONENTS)
        if sum(widths) * n_rows <= _MAX_CELLS:
            return
        widest = int(self.parts[int(np.argmax(widths)), 0])
        problem = (
            f"{max(widths)} distinct values in {n_rows} rows exceed the memory limit of the ctgan"
            " library"
        )
        fix = "drop or coarsen it, or use generator synthpop"
        raise InputError(problem, where="train", column=coding.schema.names[widest], fix=fix)

    def table(self, cells: np.ndarray) -> tuple[pd.DataFrame, list[str]]:
        """Return the library's input.

        Args:
            cells: Cells, float64 of shape (F, n).

        Returns:
            Table with one column per part, named by its position, and the names of the discrete
            ones.
        """
        columns: dict[str, np.ndarray] = {}
        discrete = []
        for position, (i, part) in enumerate(self.parts):
            name = str(position)
            is_missing = np.isnan(cells[i])
            if part == NUMBER:
                size, center, deviation, _, _ = self.scales[i]
                scaled = (cells[i] / size - center) / deviation
                columns[name] = np.where(is_missing, 0.0, scaled)
                continue
            discrete.append(name)
            codes = cells[i] if part == CODE else is_missing
            columns[name] = codes.astype(np.int64)
        return pd.DataFrame(columns), discrete

    def cells(self, values: np.ndarray) -> np.ndarray:
        """Invert :meth:`table`. Numbers are clipped to the range.

        Args:
            values: Values of the trained columns, float64 of shape (n, C).

        Returns:
            Cells, float64 of shape (F, n).
        """
        cells = np.repeat(self.base[:, np.newaxis], len(values), axis=1)
        for (i, part), column_values in zip(self.parts, values.T, strict=True):
            if part == NUMBER:
                cells[i] = self._numbers(i, column_values)
            elif part == CODE:
                cells[i] = column_values
            else:
                cells[i][column_values == 1] = np.nan
        return cells

    def _numbers(self, i: int, values: np.ndarray) -> np.ndarray:
        size, center, deviation, low, high = self.scales[i]
        numbers = np.clip(np.clip(values * deviation + center, -1, 1) * size, low, high)
        return np.rint(numbers) if self.is_whole_day[i] else numbers

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays to store."""
        return {
            "base": self.base,
            "parts": self.parts,
            "scales": self.scales,
            "whole": self.is_whole_day,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> LibraryColumns:
        """Create the columns from the output of :meth:`to_arrays`.

        Args:
            arrays: Arrays by name; others are ignored.

        Raises:
            KeyError: If an array is missing.
        """
        return cls(arrays["base"], arrays["parts"], arrays["scales"], arrays["whole"])


@dataclass(frozen=True, eq=False)
class Span:
    """Network outputs of one column.

    A category has one output per value. A number has its position within a component, then one
    output per component.

    Attributes:
        values: Values of a category or means of the components, shape (k,).
        deviations: Standard deviations of the components, NaN for a category, shape (k,).
    """

    values: np.ndarray
    deviations: np.ndarray

    @property
    def is_number(self) -> bool:
        """False for a category."""
        return not np.isnan(self.deviations).any()

    @property
    def width(self) -> int:
        """Number of outputs."""
        return len(self.values) + int(self.is_number)

    def decode(self, outputs: np.ndarray, sigma: float | None) -> np.ndarray:
        """Return the values of outputs.

        Args:
            outputs: Shape (n, width).
            sigma: Standard deviation by which positions within a component are perturbed. None:
                they are not.

        Returns:
            float64 of shape (n,).
        """
        if not self.is_number:
            return self.values[outputs.argmax(axis=1)]
        components = outputs[:, 1:].argmax(axis=1)
        within = outputs[:, 0].astype(np.float64)
        if sigma is not None:
            # the global random state, as in the library
            within = np.random.normal(within, sigma)  # noqa: NPY002
        units = np.clip(within, -1, 1) * _N_COMPONENT_DEVIATIONS
        return self.values[components] + units * self.deviations[components]

    def fits_number(self) -> bool:
        """Return True if a number can have the stored deviations."""
        return bool((self.deviations > 0).all() and np.isfinite(self.deviations).all())

    def fits_codes(self, n_codes: int) -> bool:
        """Return True if a category with codes below ``n_codes`` can have the stored values."""
        is_code = np.isin(self.values, np.arange(n_codes))
        return bool(np.isnan(self.deviations).all() and is_code.all())


@dataclass(frozen=True, eq=False)
class LibraryDecoder:
    """The parts of a fitted model other than its network, in place of the library's transformer and
    data sampler.

    Network outputs consist of one :class:`Span` per column.

    Attributes:
        sizes: Number of values or components of each column, int64 of shape (C,).
        values: Concatenated values of the categories and means of the components.
        deviations: Concatenated standard deviations of the components, NaN for categories.
        conditions: Frequency of each category among the conditions, or empty. The library draws
            them by log frequency if it is trained so, which would overrepresent rare values.
    """

    sizes: np.ndarray
    values: np.ndarray
    deviations: np.ndarray
    conditions: np.ndarray

    @classmethod
    def of_model(cls, transformer: Any, sampler: Any) -> LibraryDecoder:
        """Read the library's fitted objects.

        Args:
            transformer: Its ``DataTransformer``.
            sampler: Its ``DataSampler``. None: without conditions.
        """
        spans = [_fitted_span(column) for column in transformer._column_transform_info_list]
        counts: list[int] = []
        if sampler is not None:
            for rows_by_category in sampler._rid_by_cat_cols:
                counts.extend(len(rows) for rows in rows_by_category)
        conditions = np.array(counts, dtype=np.float64)
        return cls(
            sizes=np.array([len(span.values) for span in spans], dtype=np.int64),
            values=np.concatenate([span.values for span in spans]),
            deviations=np.concatenate([span.deviations for span in spans]),
            conditions=conditions / max(conditions.sum(), 1),
        )

    @classmethod
    def empty(cls) -> LibraryDecoder:
        """Create a decoder without columns."""
        no_numbers = np.empty(0)
        return cls(np.empty(0, dtype=np.int64), no_numbers, no_numbers, no_numbers)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays to store."""
        return {
            "sizes": self.sizes,
            "values": self.values,
            "deviations": self.deviations,
            "conditions": self.conditions,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> LibraryDecoder:
        """Create a decoder from the output of :meth:`to_arrays`.

        Args:
            arrays: Arrays by name; others are ignored.

        Raises:
            KeyError: If an array is missing.
        """
        return cls(arrays["sizes"], arrays["values"], arrays["deviations"], arrays["conditions"])

    def spans(self) -> Iterator[Span]:
        """Yield the network outputs of each column."""
        ends = np.cumsum(self.sizes)
        values = np.split(self.values, ends)[:-1]
        deviations = np.split(self.deviations, ends)[:-1]
        for span_values, span_deviations in zip(values, deviations, strict=True):
            yield Span(span_values, span_deviations)

    @property
    def output_info_list(self) -> list[list[Any]]:
        """Form of the network outputs, as the library reads it."""
        from ctgan.data_transformer import SpanInfo

        columns = []
        for span in self.spans():
            outputs = []
            if span.is_number:
                outputs.append(SpanInfo(1, "tanh"))
            outputs.append(SpanInfo(len(span.values), "softmax"))
            columns.append(outputs)
        return columns

    @property
    def width(self) -> int:
        """Number of network outputs."""
        return sum(span.width for span in self.spans())

    def inverse_transform(
        self, outputs: np.ndarray, sigmas: np.ndarray | None = None
    ) -> np.ndarray:
        """Decode network outputs; called by the library's ``sample``.

        Args:
            outputs: Network outputs after activation, shape (n, width).
            sigmas: Standard deviation of each output, by which TVAE perturbs numbers.

        Returns:
            Values, float64 of shape (n, C).
        """
        values = np.empty((len(outputs), len(self.sizes)))
        start = 0
        for i, span in enumerate(self.spans()):
            end = start + span.width
            sigma = None if sigmas is None else sigmas[start]
            values[:, i] = span.decode(outputs[:, start:end], sigma)
            start = end
        return values

    def sample_original_condvec(self, batch: int) -> np.ndarray | None:
        """Draw conditions by frequency; called by the library's ``sample``.

        Args:
            batch: Number of conditions.

        Returns:
            One-hot vectors, float32 of shape (batch, k). None: without conditions.
        """
        n_conditions = len(self.conditions)
        if n_conditions == 0:
            return None
        # the global random state, as in the library
        positions = np.random.choice(n_conditions, batch, p=self.conditions)  # noqa: NPY002
        conditions = np.zeros((batch, n_conditions), dtype=np.float32)
        conditions[np.arange(batch), positions] = 1
        return conditions

    def check(self, columns: LibraryColumns, coding: MatrixCoding) -> None:
        """Check that stored parts fit each other. The network checks its own weights.

        Args:
            columns: Stored columns.
            coding: Coding of the cells.

        Raises:
            ValueError: If not.
        """
        n_columns = len(coding.schema.columns)
        for by_column in (coding.values, columns.base, columns.scales, columns.is_whole_day):
            if len(by_column) != n_columns:
                raise ValueError
        if not self._fits_itself() or len(self.sizes) != len(columns.parts):
            raise ValueError
        if not np.isfinite(columns.scales).all():
            raise ValueError
        for (i, part), span in zip(columns.parts.tolist(), self.spans(), strict=True):
            if part == NUMBER:
                fits = span.fits_number()
            elif part == CODE:
                fits = span.fits_codes(coding.sizes[i] - 1)
            else:
                fits = span.fits_codes(2)
            if not fits:
                raise ValueError

    def _fits_itself(self) -> bool:
        """Return True if the arrays have matching lengths and valid numbers."""
        if not len(self.values) == len(self.deviations) == self.sizes.sum():
            return False
        if not (self.sizes > 0).all() or not np.isfinite(self.values).all():
            return False
        if len(self.conditions) == 0:
            return True
        return bool((self.conditions >= 0).all()) and math.isclose(self.conditions.sum(), 1)


def _fitted_span(column: Any) -> Span:
    """Read the library's transformation of a column."""
    if column.column_type == "discrete":
        codes = np.array(column.transform.dummies, dtype=np.float64)
        return Span(codes, np.full(len(codes), np.nan))
    mixture = column.transform._bgm_transformer
    is_used = column.transform.valid_component_indicator
    means = mixture.means_.reshape(-1)
    variances = mixture.covariances_.reshape(-1)
    return Span(means[is_used], np.sqrt(variances)[is_used])


class LibraryGenerator(Generator):
    """Base class of synthesizers of the ctgan library, whose arguments are the fields.

    Rows are reproducible on the CPU of the same machine.
    """

    license = "BUSL-1.1"
    modules = ("torch", "ctgan")
    extra = "ctgan"
    NETWORK: ClassVar[str]  # attributes of the library's object
    TRANSFORMER: ClassVar[str]

    epochs: int

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`: the library has none."""
        return {}

    @abstractmethod
    def synthesizer(self) -> type:
        """Return the library's class."""

    @abstractmethod
    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """Return the losses of the last epoch.

        Args:
            values: The library's table of losses.
        """

    @abstractmethod
    def network(self, decoder: LibraryDecoder) -> nn.Module:
        """Create an untrained network that generates rows.

        Args:
            decoder: Decoder of its outputs.
        """

    def train(
        self, table: pd.DataFrame, codes: list[str], training: Training
    ) -> tuple[Any, list[dict[str, float]]]:
        """Fit the library.

        Args:
            table: Table without missing values.
            codes: Names of the discrete columns.
            training: Arguments of the fit.

        Returns:
            The library's model, and the losses of each epoch.

        Raises:
            InputError: If training diverges.
        """
        import torch

        history: list[dict[str, float]] = []

        def record(values: pd.DataFrame) -> None:
            losses = self.losses(values)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise self.diverged()
            history.append({"epoch": len(history) + 1, **losses})
            advance(training.progress, f"{self.name}: epochs", len(history), self.epochs)

        seed = _library_seed(training.seed, _FITTING)
        device = training.device
        if device.startswith("mps"):
            device = "cpu"
        with _reproducible(device, seed), self._finite():
            model = _reporting(self.synthesizer(), record)(**self.settings(), enable_gpu=False)
            # the library's argument only selects whether to use a GPU
            model._device = torch.device(device)
            model.set_random_state(seed)
            model.fit(table, codes)
        return model, history

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        coding = MatrixCoding.fit([train], train.schema)
        cells = coding.code(train)
        columns = LibraryColumns.fit(cells, coding)
        if len(columns.parts) == 0:
            return FittedLibrary(self, coding, columns, LibraryDecoder.empty(), {})
        table, codes = columns.table(cells)
        model, history = self.train(table, codes, training)
        transformer = getattr(model, self.TRANSFORMER)
        decoder = LibraryDecoder.of_model(transformer, getattr(model, "_data_sampler", None))
        weights = weights_of(getattr(model, self.NETWORK))
        fitted = FittedLibrary(self, coding, columns, decoder, weights)
        fitted.history = tuple(history)
        return fitted

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`.

        Raises:
            ValueError: If the stored parts do not fit each other.
        """
        arrays = read_arrays(folder)
        coding = MatrixCoding.of_plain(schema, manifest["values"])
        columns = LibraryColumns.from_arrays(arrays)
        decoder = LibraryDecoder.from_arrays(arrays)
        decoder.check(columns, coding)
        return FittedLibrary(self, coding, columns, decoder, arrays)

    def diverged(self) -> InputError:
        """Return the error of a training that diverged."""
        fix = "lower its learning rates, or use another seed"
        return InputError(
            f"the losses or weights of generator {self.name} are not finite numbers", fix=fix
        )

    @contextmanager
    def _finite(self) -> Iterator[None]:
        """Replace the library's error about outputs that are not numbers by :meth:`diverged`."""
        try:
            yield
        except ValueError as error:
            if "gumbel_softmax returning NaN" in str(error):
                raise self.diverged() from None
            raise


class FittedLibrary(FittedGenerator):
    """Fitted synthesizer of the ctgan library.

    Attributes:
        columns: Columns that the library was trained on.
        decoder: Decoder of the network outputs and frequencies of the conditions.
        network: Network that generates rows.
    """

    generator: LibraryGenerator

    def __init__(
        self,
        generator: LibraryGenerator,
        coding: MatrixCoding,
        columns: LibraryColumns,
        decoder: LibraryDecoder,
        weights: Mapping[str, np.ndarray],
    ) -> None:
        """Create the network.

        Args:
            generator: Generator with its settings.
            coding: Coding of the cells.
            columns: Columns that the library was trained on.
            decoder: Decoder of the network outputs.
            weights: Weights of the network; other arrays are ignored.

        Raises:
            RuntimeError: If the weights do not fit decoder and settings.
            InputError: If a weight is not finite.
        """
        import torch

        self.generator = generator
        self.schema = coding.schema
        self.coding = coding
        self.columns = columns
        self.decoder = decoder
        self.network: nn.Module = torch.nn.Identity()
        if len(decoder.sizes):
            self.network = with_weights(lambda: generator.network(decoder), weights)
        if not all(weight.isfinite().all() for weight in self.network.state_dict().values()):
            raise generator.diverged()

    def draw(self, n_rows: int, seed: int) -> np.ndarray:
        """Draw values of the trained columns by the library's ``sample``, in blocks.

        Args:
            n_rows: Number of rows.
            seed: Seed of the library's random states.

        Returns:
            float64 of shape (n_rows, C).
        """
        import torch

        from privacy_assets.distances.network import one_thread

        if not len(self.decoder.sizes):
            return np.empty((n_rows, 0))
        model = self.generator.synthesizer()(**self.generator.settings(), enable_gpu=False)
        setattr(model, self.generator.NETWORK, self.network)
        setattr(model, self.generator.TRANSFORMER, self.decoder)
        model._data_sampler = self.decoder
        model.set_random_state(seed)
        with one_thread(), torch.inference_mode(), self.generator._finite():
            blocks = []
            for start in range(0, n_rows, _N_BLOCK_ROWS):
                blocks.append(model.sample(min(_N_BLOCK_ROWS, n_rows - start)))
        return np.concatenate(blocks)

    def _sample(self, n_rows: int, seed: int) -> Table:
        values = self.draw(n_rows, _library_seed(seed, _SAMPLING))
        if not np.isfinite(values).all():
            raise self.generator.diverged()
        return self.coding.table(self.columns.cells(values))

    def _save(self, folder: Path) -> dict[str, Any]:
        arrays = {**self.columns.to_arrays(), **self.decoder.to_arrays()}
        write_arrays(folder, {**arrays, **weights_of(self.network)})
        return {"values": self.coding.plain_values()}


@declared
class CTGAN(LibraryGenerator):
    """A generative adversarial network conditioned on one category of one column (Xu et al. 2019).

    A number is represented by a component of a Gaussian mixture and the position within it. In
    training, the column of the condition is drawn uniformly and its category by (log) frequency. In
    sampling, conditions are drawn by frequency, whereas the library continues to use log frequency
    and thus overrepresents rare categories. The defaults follow the library and the paper.

    Missing numbers are a category. Numbers stay within the range of the training rows; integers and
    whole days stay whole. Many epochs on few rows can memorize rows. A GAN has no loss that
    indicates when to stop, and the library supports neither early stopping nor resuming: an
    interrupted fit restarts. ``history`` contains the losses of the last batch of each epoch.

    Attributes:
        epochs: Number of passes over the rows.
        batch_size: Rows per step, even and a multiple of ``pac``.
        pac: Number of rows that the discriminator evaluates jointly.
        embedding_dim: Dimension of the noise.
        generator_dim: Widths of the generator's hidden layers.
        discriminator_dim: Widths of the discriminator's hidden layers.
        generator_lr: Learning rate of Adam for the generator.
        discriminator_lr: Learning rate of Adam for the discriminator.
        log_frequency: Whether training draws categories by the logarithm of their frequency,
            instead of the frequency.
    """

    name = "ctgan"
    summary = (
        "CTGAN: a conditional generative adversarial network for tables, by the ctgan library."
    )
    NETWORK = "_generator"
    TRANSFORMER = "_transformer"

    epochs: int = Field(default=300, ge=1)
    batch_size: int = Field(default=500, ge=1)
    pac: int = Field(default=10, ge=1)
    embedding_dim: int = Field(default=128, ge=1)
    generator_dim: Layers = Field(default=(256, 256), min_length=1)
    discriminator_dim: Layers = Field(default=(256, 256), min_length=1)
    generator_lr: float = Field(default=2e-4, gt=0, le=_MAX_SETTING)
    discriminator_lr: float = Field(default=2e-4, gt=0, le=_MAX_SETTING)
    log_frequency: bool = True

    def __post_init__(self) -> None:
        if self.batch_size % 2 or self.batch_size % self.pac:
            raise ConfigError(
                f"generator ctgan: batch_size must be even and a multiple of pac ({self.pac})."
            )

    def synthesizer(self) -> type:
        """Implement :meth:`LibraryGenerator.synthesizer`."""
        from ctgan import CTGAN as Synthesizer  # noqa: N811

        return Synthesizer

    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """Implement :meth:`LibraryGenerator.losses`."""
        last = values.iloc[-1]
        return {
            "generator_loss": float(last["Generator Loss"]),
            "discriminator_loss": float(last["Discriminator Loss"]),
        }

    def network(self, decoder: LibraryDecoder) -> nn.Module:
        """Implement :meth:`LibraryGenerator.network`."""
        from ctgan.synthesizers.ctgan import Generator as Network
        from torch.nn import BatchNorm1d

        network: nn.Module = Network(
            self.embedding_dim + len(decoder.conditions), self.generator_dim, decoder.width
        )
        for module in network.modules():
            if isinstance(module, BatchNorm1d):  # the library samples with batch statistics
                module.track_running_stats = False
        return network


@declared
class TVAE(LibraryGenerator):
    """A variational autoencoder (Xu et al. 2019) with the representation of :class:`CTGAN`, without
    conditions.

    The defaults follow the library and the paper. Missing values, ranges, integers and
    memorization: see :class:`CTGAN`. The library uses no validation rows and supports neither early
    stopping nor resuming: an interrupted fit restarts. ``history`` contains the mean loss of the
    batches of each epoch.

    Attributes:
        epochs: Number of passes over the rows.
        batch_size: Rows per step.
        embedding_dim: Dimension of the latent code.
        compress_dims: Widths of the encoder's hidden layers.
        decompress_dims: Widths of the decoder's hidden layers.
        loss_factor: Weight of the reconstruction loss.
    """

    name = "tvae"
    summary = "TVAE: a variational autoencoder for tables, by the ctgan library."
    NETWORK = "decoder"
    TRANSFORMER = "transformer"

    epochs: int = Field(default=300, ge=1)
    batch_size: int = Field(default=500, ge=1)
    embedding_dim: int = Field(default=128, ge=1)
    compress_dims: Layers = Field(default=(128, 128), min_length=1)
    decompress_dims: Layers = Field(default=(128, 128), min_length=1)
    loss_factor: float = Field(default=2.0, gt=0, le=_MAX_SETTING)

    def synthesizer(self) -> type:
        """Implement :meth:`LibraryGenerator.synthesizer`."""
        from ctgan import TVAE as Synthesizer  # noqa: N811

        return Synthesizer

    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """Implement :meth:`LibraryGenerator.losses`."""
        is_last_epoch = values["Epoch"] == values["Epoch"].iloc[-1]
        return {"loss": float(values["Loss"][is_last_epoch].mean())}

    def network(self, decoder: LibraryDecoder) -> nn.Module:
        """Implement :meth:`LibraryGenerator.network`."""
        from ctgan.synthesizers.tvae import Decoder

        network: nn.Module = Decoder(self.embedding_dim, self.decompress_dims, decoder.width)
        return network


def _scale(values: np.ndarray) -> tuple[float, ...]:
    """Return a row of ``scales``. Numbers are divided by the largest first, so that squares do not
    overflow.
    """
    size = float(np.abs(values).max())
    units = values / size
    center = float(units.mean())
    deviation = float(units.std() / _DEVIATION)
    return size, center, deviation, float(values.min()), float(values.max())


def _library_seed(seed: int, stream: int) -> int:
    """Derive a seed for numpy and torch, different for each ``stream``."""
    sequence = np.random.SeedSequence(seed, spawn_key=(stream,))
    return int(sequence.generate_state(1)[0])


def _reporting(synthesizer: Any, report: Callable[[pd.DataFrame], None]) -> Any:
    """Return a subclass that calls ``report`` with its table of losses after each epoch."""

    class Reporting(synthesizer):
        @property
        def loss_values(self) -> pd.DataFrame | None:
            return self._values

        @loss_values.setter
        def loss_values(self, values: pd.DataFrame | None) -> None:
            self._values = values
            if values is not None and len(values):
                report(values)

    return Reporting


@contextmanager
def _reproducible(device: str, seed: int) -> Iterator[None]:
    """Use one thread and one process, and restore the random states of CUDA. The library restores
    those of the CPU.

    The number of threads would affect the last bits of sums, and thus the weights.
    """
    import joblib
    import torch
    from threadpoolctl import threadpool_limits

    from privacy_assets.distances.network import one_thread

    n_cuda_devices = 0
    if device.startswith("cuda"):
        n_cuda_devices = torch.cuda.device_count()
    with (
        torch.random.fork_rng(range(n_cuda_devices)),
        threadpool_limits(1),
        one_thread(),
        joblib.parallel_config(backend="sequential"),
    ):
        if n_cuda_devices:
            torch.cuda.manual_seed_all(seed)
        yield
