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
from dataclasses import dataclass, fields
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
from privacy_assets.generators.neural import weights_of, with_weights
from privacy_assets.infra.progress import advance
from privacy_assets.infra.settings import Layers, declared
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from torch import nn

NUMBER, CODE, MISSING = range(3)
_LARGEST = 1e38  # maximum of a rate or a weight, below the overflow of float32
# of the one-hot matrix that the library builds; it keeps three of them, 2 GiB each
_MOST_CELLS = 2**28
_MOST_COMPONENTS = 10
_BLOCK = 2**16  # rows per call of the library's ``sample``, which keeps all network outputs
_FINE = 1e4  # divisor of the standard deviation that is the unit of numbers


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
        whole: True for datetimes without a time of day, bool of shape (F,).
    """

    base: np.ndarray
    parts: np.ndarray
    scales: np.ndarray
    whole: np.ndarray

    @classmethod
    def fit(cls, cells: np.ndarray, coding: MatrixCoding) -> LibraryColumns:
        """Determine the columns for cells (F, n), n >= 1.

        Raises:
            InputError: If there are too many categories for the available memory.
        """
        base, parts, scales = cells[:, 0].copy(), [], np.ones((len(cells), 5))
        whole = np.zeros(len(cells), dtype=np.bool_)
        for place, row in enumerate(cells):
            known = row[~np.isnan(row)]
            if known.size == 0:
                continue
            base[place] = known[0]
            if known.min() < known.max():
                parts.append((place, NUMBER if coding.is_number[place] else CODE))
                scales[place] = _scale(known)
            if known.size < row.size:
                parts.append((place, MISSING))
            whole[place] = coding.schema.columns[place].kind == "datetime" and bool(
                (known == np.floor(known)).all()
            )
        columns = cls(base, np.array(parts, dtype=np.int64).reshape(-1, 2), scales, whole)
        columns._check_width(cells, coding)
        return columns

    def _check_width(self, cells: np.ndarray, coding: MatrixCoding) -> None:
        widths = [
            len(np.unique(cells[at])) if part == CODE else 1 + _MOST_COMPONENTS
            for at, part in self.parts
        ]
        if sum(widths) * cells.shape[1] > _MOST_CELLS:
            widest = int(self.parts[int(np.argmax(widths)), 0])
            fix = "drop or coarsen it, or use generator synthpop"
            problem = (
                f"{max(widths)} distinct values in {cells.shape[1]} rows exceed the memory limit"
                " of the ctgan library"
            )
            raise InputError(problem, where="train", column=coding.schema.names[widest], fix=fix)

    def table(self, cells: np.ndarray) -> tuple[pd.DataFrame, list[str]]:
        """Return the library's input, one column per part named by its position, and the names of
        the discrete ones.
        """
        columns: dict[str, np.ndarray] = {}
        for at, (place, part) in enumerate(self.parts):
            row, (size, center, deviation, _, _) = cells[place], self.scales[place]
            if part == NUMBER:
                columns[str(at)] = np.where(np.isnan(row), 0.0, (row / size - center) / deviation)
            else:
                columns[str(at)] = (row if part == CODE else np.isnan(row)).astype(np.int64)
        return pd.DataFrame(columns), [str(at) for at in np.flatnonzero(self.parts[:, 1] != NUMBER)]

    def cells(self, values: np.ndarray) -> np.ndarray:
        """Invert :meth:`table`: convert values float64 (n, C) to cells (F, n), with numbers clipped
        to the range.
        """
        out = np.repeat(self.base[:, np.newaxis], len(values), axis=1)
        for (place, part), row in zip(self.parts, values.T, strict=True):
            size, center, deviation, low, high = self.scales[place]
            if part == NUMBER:
                numbers = np.clip(np.clip(row * deviation + center, -1, 1) * size, low, high)
                out[place] = np.rint(numbers) if self.whole[place] else numbers
            elif part == CODE:
                out[place] = row
            else:
                out[place][row == 1] = np.nan
        return out


@dataclass(frozen=True, eq=False)
class LibraryDecoder:
    """The parts of a fitted model other than its network, in place of the library's transformer and
    data sampler.

    Network outputs consist of one span per column: one output per value of a category; or the
    position within a component and one output per component of a number.

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
        """Read the library's fitted ``DataTransformer`` and ``DataSampler`` (None: without
        conditions).
        """
        spans: list[tuple[np.ndarray, np.ndarray]] = []
        for column in transformer._column_transform_info_list:
            if column.column_type == "discrete":
                codes = np.array(column.transform.dummies, dtype=np.float64)
                spans.append((codes, np.full(len(codes), np.nan)))
                continue
            mixture, valid = (
                column.transform._bgm_transformer,
                column.transform.valid_component_indicator,
            )
            means, variances = mixture.means_.reshape(-1), mixture.covariances_.reshape(-1)
            spans.append((means[valid], np.sqrt(variances)[valid]))
        rows = (
            []
            if sampler is None
            else [category for column in sampler._rid_by_cat_cols for category in column]
        )
        counts = np.array([len(one) for one in rows], dtype=np.float64)
        values, deviations = (np.concatenate(parts) for parts in zip(*spans, strict=True))
        sizes = np.array([len(codes) for codes, _ in spans], dtype=np.int64)
        return cls(sizes, values, deviations, counts / max(counts.sum(), 1))

    def spans(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield values and deviations of each column."""
        ends = np.cumsum(self.sizes)
        yield from zip(
            np.split(self.values, ends)[:-1], np.split(self.deviations, ends)[:-1], strict=True
        )

    @property
    def output_info_list(self) -> list[list[Any]]:
        """Form of the network outputs, as the library reads it."""
        from ctgan.data_transformer import SpanInfo

        return [
            [
                *([] if np.isnan(deviations).any() else [SpanInfo(1, "tanh")]),
                SpanInfo(len(values), "softmax"),
            ]
            for values, deviations in self.spans()
        ]

    @property
    def width(self) -> int:
        """Number of network outputs."""
        return sum(span.dim for column in self.output_info_list for span in column)

    def inverse_transform(
        self, outputs: np.ndarray, sigmas: np.ndarray | None = None
    ) -> np.ndarray:
        """Decode network outputs (n, width) to values float64 (n, C); called by the library's
        ``sample``.

        Args:
            outputs: Network outputs after activation.
            sigmas: Standard deviation of each output, by which TVAE perturbs numbers.
        """
        out, start = np.empty((len(outputs), len(self.sizes))), 0
        for column, (values, deviations) in zip(out.T, self.spans(), strict=True):
            number = int(not np.isnan(deviations).any())
            choice = outputs[:, start + number : start + number + len(values)].argmax(axis=1)
            column[:] = values[choice]
            if number:
                within = outputs[:, start].astype(np.float64)
                if sigmas is not None:
                    within = np.random.normal(within, sigmas[start])  # noqa: NPY002 (as in the library)
                column += np.clip(within, -1, 1) * 4 * deviations[choice]
            start += number + len(values)
        return out

    def sample_original_condvec(self, batch: int) -> np.ndarray | None:
        """Draw one-hot conditions float32 (batch, k) by frequency; called by the library's
        ``sample``.
        """
        count = len(self.conditions)
        if count == 0:
            return None
        chosen = np.random.choice(count, batch, p=self.conditions)  # noqa: NPY002 (as in the library)
        conditions = np.zeros((batch, count), dtype=np.float32)
        conditions[np.arange(batch), chosen] = 1
        return conditions

    def check(self, columns: LibraryColumns, coding: MatrixCoding) -> None:
        """Check that stored parts fit each other. The network checks its own weights.

        Raises:
            ValueError: If not.
        """
        shapes = len(coding.values), len(columns.base), len(columns.scales), len(columns.whole)
        sound = set(shapes) == {len(coding.schema.columns)} and len(self.sizes) == len(
            columns.parts
        )
        sound &= len(self.values) == len(self.deviations) == self.sizes.sum() and bool(
            (self.sizes > 0).all()
        )
        sound &= bool(np.isfinite(columns.scales).all() and np.isfinite(self.values).all())
        sound &= len(self.conditions) == 0 or bool(
            (self.conditions >= 0).all() and math.isclose(self.conditions.sum(), 1)
        )
        for (place, part), (values, deviations) in zip(
            columns.parts.tolist(), self.spans(), strict=True
        ):
            if part == NUMBER:
                sound &= bool((deviations > 0).all() and np.isfinite(deviations).all())
            else:
                most = coding.sizes[place] - 2 if part == CODE else 1
                sound &= bool(
                    np.isnan(deviations).all() and np.isin(values, np.arange(most + 1)).all()
                )
        if not sound:
            raise ValueError


class LibraryGenerator(Generator):
    """Base class of synthesizers of the ctgan library, whose arguments are the fields.

    Rows are reproducible on the CPU of the same machine.
    """

    licence = "BUSL-1.1"
    modules = ("torch", "ctgan")
    extra = "ctgan"
    NETWORK: ClassVar[str]  # attributes of the library's object
    TRANSFORMER: ClassVar[str]

    epochs: int

    def overfitting_protection(self) -> str:
        """Implement :meth:`Generator.overfitting_protection`: the library has none."""
        return ""

    @abstractmethod
    def synthesizer(self) -> type:
        """Return the library's class."""

    @abstractmethod
    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """Return the losses of the last epoch, given the library's table of losses."""

    @abstractmethod
    def network(self, decoder: LibraryDecoder) -> nn.Module:
        """Create an untrained network that generates rows."""

    def train(
        self, table: pd.DataFrame, codes: list[str], training: Training
    ) -> tuple[Any, list[dict[str, float]]]:
        """Fit the library to a table without missing values; return its model and the losses of
        each epoch.
        """
        import torch

        history: list[dict[str, float]] = []

        def tell(values: pd.DataFrame) -> None:
            losses = self.losses(values)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise self.diverged()
            history.append({"epoch": len(history) + 1, **losses})
            advance(training.progress, f"{self.name}: epochs", len(history), self.epochs)

        state, device = (
            _state(training.seed, 0),
            "cpu" if training.device.startswith("mps") else training.device,
        )
        with _alone(device, state), self._finite():
            model = _reporting(self.synthesizer(), tell)(**self.settings(), enable_gpu=False)
            # the library's argument only selects whether to use a GPU
            model._device = torch.device(device)
            model.set_random_state(state)
            model.fit(table, codes)
        return model, history

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        coding = MatrixCoding.fit([train], train.schema)
        cells = coding.code(train)
        columns = LibraryColumns.fit(cells, coding)
        if len(columns.parts) == 0:
            nothing = LibraryDecoder(np.empty(0, dtype=np.int64), *[np.empty(0)] * 3)
            return FittedLibrary(self, coding, columns, nothing, {})
        model, history = self.train(*columns.table(cells), training)
        decoder = LibraryDecoder.of_model(
            getattr(model, self.TRANSFORMER), getattr(model, "_data_sampler", None)
        )
        fitted = FittedLibrary(
            self, coding, columns, decoder, weights_of(getattr(model, self.NETWORK))
        )
        fitted.history = tuple(history)
        return fitted

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`.

        Raises:
            ValueError: If the stored parts do not fit each other.
        """
        arrays, coding = read_arrays(folder), MatrixCoding.of_plain(schema, manifest["values"])
        columns = LibraryColumns(*(arrays[field.name] for field in fields(LibraryColumns)))
        decoder = LibraryDecoder(*(arrays[field.name] for field in fields(LibraryDecoder)))
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
        """Create the network with ``weights``.

        Raises:
            RuntimeError: If the weights do not fit decoder and settings.
            InputError: If a weight is not finite.
        """
        import torch

        self.generator, self.schema, self.coding = generator, coding.schema, coding
        self.columns, self.decoder = columns, decoder
        self.network: nn.Module = torch.nn.Identity()
        if len(decoder.sizes):
            self.network = with_weights(lambda: generator.network(decoder), weights)
        if not all(part.isfinite().all() for part in self.network.state_dict().values()):
            raise generator.diverged()

    def draw(self, rows: int, state: int) -> np.ndarray:
        """Draw values of the trained columns by the library's ``sample``, float64 of shape (rows,
        C), in blocks.

        Args:
            rows: Number of rows.
            state: Seed of the library's random states.
        """
        import torch

        from privacy_assets.distances.network import one_thread

        if not len(self.decoder.sizes):
            return np.empty((rows, 0))
        model = self.generator.synthesizer()(**self.generator.settings(), enable_gpu=False)
        setattr(model, self.generator.NETWORK, self.network)
        setattr(model, self.generator.TRANSFORMER, self.decoder)
        model._data_sampler = self.decoder
        model.set_random_state(state)
        with one_thread(), torch.inference_mode(), self.generator._finite():
            parts = [model.sample(min(_BLOCK, rows - start)) for start in range(0, rows, _BLOCK)]
        return np.concatenate(parts)

    def _sample(self, rows: int, seed: int) -> Table:
        values = self.draw(rows, _state(seed, 1))
        if not np.isfinite(values).all():
            raise self.generator.diverged()
        return self.coding.table(self.columns.cells(values))

    def _save(self, folder: Path) -> dict[str, Any]:
        write_arrays(
            folder, {**vars(self.columns), **vars(self.decoder), **weights_of(self.network)}
        )
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

    epochs: int = Field(default=300, ge=1, description="number of passes over the training rows")
    batch_size: int = Field(
        default=500, ge=1, description="number of rows per step: even, and a multiple of pac"
    )
    pac: int = Field(
        default=10, ge=1, description="number of rows that the discriminator evaluates jointly"
    )
    embedding_dim: int = Field(default=128, ge=1, description="dimension of the noise")
    generator_dim: Layers = Field(
        default=(256, 256), min_length=1, description="widths of the generator's layers"
    )
    discriminator_dim: Layers = Field(
        default=(256, 256), min_length=1, description="widths of the discriminator's layers"
    )
    generator_lr: float = Field(
        default=2e-4, gt=0, le=_LARGEST, description="learning rate of the generator"
    )
    discriminator_lr: float = Field(
        default=2e-4, gt=0, le=_LARGEST, description="learning rate of the discriminator"
    )
    log_frequency: bool = Field(
        default=True, description="draw categories by the logarithm of their frequency"
    )

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

    epochs: int = Field(default=300, ge=1, description="number of passes over the training rows")
    batch_size: int = Field(default=500, ge=1, description="number of rows per step")
    embedding_dim: int = Field(default=128, ge=1, description="dimension of the latent code")
    compress_dims: Layers = Field(
        default=(128, 128), min_length=1, description="widths of the encoder's layers"
    )
    decompress_dims: Layers = Field(
        default=(128, 128), min_length=1, description="widths of the decoder's layers"
    )
    loss_factor: float = Field(
        default=2.0, gt=0, le=_LARGEST, description="weight of the reconstruction loss"
    )

    def synthesizer(self) -> type:
        """Implement :meth:`LibraryGenerator.synthesizer`."""
        from ctgan import TVAE as Synthesizer  # noqa: N811

        return Synthesizer

    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """Implement :meth:`LibraryGenerator.losses`."""
        return {"loss": float(values["Loss"][values["Epoch"] == values["Epoch"].iloc[-1]].mean())}

    def network(self, decoder: LibraryDecoder) -> nn.Module:
        """Implement :meth:`LibraryGenerator.network`."""
        from ctgan.synthesizers.tvae import Decoder

        network: nn.Module = Decoder(self.embedding_dim, self.decompress_dims, decoder.width)
        return network


def _scale(known: np.ndarray) -> tuple[float, ...]:
    """Return a row of ``scales``. Numbers are divided by the largest first, so that squares do not
    overflow.
    """
    size = float(np.abs(known).max())
    unit = known / size
    return (
        size,
        float(unit.mean()),
        float(unit.std() / _FINE),
        float(known.min()),
        float(known.max()),
    )


def _state(seed: int, stream: int) -> int:
    """Derive a seed for numpy and torch, different for each ``stream``: 0 for fitting, 1 for
    sampling.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1)[0])


def _reporting(synthesizer: Any, tell: Callable[[pd.DataFrame], None]) -> Any:
    """Return a subclass that calls ``tell`` with its table of losses after each epoch."""

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
    """Use one thread and one process, and restore the random states of CUDA. The library restores
    those of the CPU.

    The number of threads would affect the last bits of sums, and thus the weights.
    """
    import joblib
    import torch
    from threadpoolctl import threadpool_limits

    from privacy_assets.distances.network import one_thread

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
