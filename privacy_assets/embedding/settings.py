"""What decides how an embedder is trained, and what is told of its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from privacy_assets.settings import declared

_PRESETS: dict[str, dict[str, int | None]] = {  # units of a layer, steps and rows at most
    "default": {"width": 256, "max_steps": 80, "max_rows": 50_000},
    "paper": {"width": 1024, "max_steps": None, "max_rows": None},
}


@declared
class EmbedderSettings:
    """How an embedder is built and trained; the values are those of Palacios 5.2 but for width, steps and rows.

    ``preset`` "paper" has 3 x 1024 units and trains on all rows without a budget of steps; "default" has 3 x 256, and
    learns from ``max_rows`` rows drawn at random in ``max_steps`` steps at most, whatever the size of the table.
    ``width``, ``max_steps`` and ``max_rows`` override either. Why they are enough: benchmarks/results/embedder.md.

    ``dims`` None means 10, 20 or 30 (fewer than 40, fewer than 140, more columns; the paper has 15, 97 and 193).
    Training stops after ``max_steps`` or ``max_epochs``, or when the mean validation loss of the last ``window`` epochs
    (of all when there were fewer) has not improved for ``patience`` epochs.
    """

    part: ClassVar[str] = "embedder"

    preset: Literal["default", "paper"] = Field(
        default="default", description="3 x 256 units and a budget, or 3 x 1024 and none"
    )
    width: int | None = Field(default=None, ge=1, description="units of a layer; those of the preset without")
    dims: int | None = Field(default=None, ge=1, description="of the embedding; by the number of columns without")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="share of units that are dropped")
    temperature: float = Field(default=0.1, gt=0, description="of the similarities")
    batch: int = Field(default=1024, ge=2, description="rows of a step")
    learning_rate: float = Field(default=1e-3, gt=0, description="of Adam")
    max_steps: int | None = Field(default=None, ge=1, description="batches, at most; those of the preset without")
    max_rows: int | None = Field(default=None, ge=1, description="rows to learn from, at most; as max_steps")
    max_epochs: int = Field(default=300, ge=1, description="passes over the rows, at most")
    window: int = Field(default=20, ge=1, description="epochs over which the validation loss is averaged")
    patience: int = Field(default=10, ge=1, description="epochs without a better average that end training")

    def __post_init__(self) -> None:
        for name, value in _PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def dims_for(self, columns: int) -> int:
        """Dimension of the embedding of a table with so many columns."""
        return self.dims or (10 if columns < 40 else 20 if columns < 140 else 30)


@dataclass(frozen=True)
class Epoch:
    """One pass: mean training loss, and loss and accuracy on the rows held out (None when none were)."""

    epoch: int
    train_loss: float
    validation_loss: float | None
    validation_accuracy: float | None
