"""Settings of the embedder, and the record of its training epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from privacy_assets.infra.settings import declared

_PRESETS: dict[str, dict[str, int | None]] = {  # units per layer, maximum steps, maximum rows
    "default": {"width": 256, "max_steps": 80, "max_rows": 50_000},
    "paper": {"width": 1024, "max_steps": None, "max_rows": None},
}


@declared
class EmbedderSettings:
    """Architecture and training of the embedder.

    The defaults follow Palacios 5.2 except for width, steps and rows;
    benchmarks/results/embedder.md shows that they suffice. Training stops after ``max_steps`` or
    ``max_epochs``, or by early stopping.

    Attributes:
        preset: "default": 3 x 256 units, trained on at most ``max_rows`` randomly drawn rows for at
            most ``max_steps`` steps. "paper": 3 x 1024 units, all rows, no limit on steps.
        width: Units per layer. None: from the preset.
        dims: Dimension of the embedding. None: from the number of columns, see :meth:`dims_for`.
        dropout: Share of dropped units.
        temperature: Temperature of the similarities.
        batch_size: Rows per step.
        learning_rate: Learning rate of Adam.
        max_steps: Maximum number of steps. None: from the preset.
        max_rows: Maximum number of rows used. None: from the preset.
        max_epochs: Maximum number of passes over the rows.
        window: Number of epochs (fewer at the start) over which the validation loss is averaged.
        patience: Number of epochs without improvement of this average after which training stops.
    """

    part: ClassVar[str] = "embedder"

    preset: Literal["default", "paper"] = "default"
    width: int | None = Field(default=None, ge=1)
    dims: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    temperature: float = Field(default=0.1, gt=0)
    batch_size: int = Field(default=1024, ge=2)
    learning_rate: float = Field(default=1e-3, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    max_rows: int | None = Field(default=None, ge=1)
    max_epochs: int = Field(default=300, ge=1)
    window: int = Field(default=20, ge=1)
    patience: int = Field(default=10, ge=1)

    def __post_init__(self) -> None:
        for name, value in _PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def dims_for(self, columns: int) -> int:
        """Return the dimension of the embedding of a table.

        The default is the largest multiple of 10 below the number of columns, at least 10 and at
        most 30. It gives the dimensions of the paper: 10, 20 and 30 for 15 (Adult), 28 (Texas) and
        37 columns (Census) (Palacios 5.1, 5.2). The paper compares dimensions below the number of
        columns (appendix C), states no rule, and has no table with more columns.

        Args:
            columns: Number of columns of the table, at least 1.

        Returns:
            ``dims``, or the default if it is None.
        """
        return self.dims or 10 * min(max((columns - 1) // 10, 1), 3)


@dataclass(frozen=True)
class Epoch:
    """Losses of one epoch.

    Attributes:
        epoch: Number, from 1.
        train_loss: Mean loss on the training rows.
        validation_loss: Loss on the validation rows. None: no rows were set aside.
        validation_accuracy: Accuracy on the validation rows, or None.
    """

    epoch: int
    train_loss: float
    validation_loss: float | None
    validation_accuracy: float | None

    @property
    def monitored(self) -> float:
        """Loss that decides on early stopping and on the weights that are kept."""
        return self.train_loss if self.validation_loss is None else self.validation_loss
