"""Sizes and training of the network of target attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from privacy_assets.settings import declared

Scores = Literal["key", "value"]
Scale = Literal["range", "none"]


@declared
class AttentionSettings:
    """Sizes and training of the network; the defaults are the paper's but for ``patience``.

    ``closest`` different rows of each table are read. ``scores`` are the target's query times the keys, as in the text
    and in the authors' program; "value" times the values, as algorithm 1 prints it. ``scale`` "range" brings numbers to
    0..1 over the audited table, as the authors' program does; "none" leaves them untouched, as the paper says. The
    learning rate is 0.001, as in their program; the paper prints "10e-3". Training ends after ``patience`` epochs
    without a lower validation loss; None trains for all ``epochs``. ``device`` is a torch device name.
    """

    part: ClassVar[str] = "attack attention"

    closest: int = Field(default=100, ge=1, description="different rows of each table that are read")
    embedding: int = Field(default=20, ge=1, description="size of an embedded cell")
    embedding_hidden: int = Field(default=20, ge=1, description="units of its layer")
    attention: int = Field(default=15, ge=1, description="size of queries and keys")
    prediction_hidden: int = Field(default=10, ge=1, description="units of the last layer")
    scores: Scores = Field(default="key", description="what the query is multiplied with")
    scale: Scale = Field(default="range", description="what is done to numbers")
    dropout: float = Field(default=0.15, ge=0, lt=1, description="share of units that are dropped")
    learning_rate: float = Field(default=1e-3, gt=0, description="of Adam")
    batch: int = Field(default=20, ge=1, description="tables of a step")
    epochs: int = Field(default=500, ge=1, description="passes over the tables, at most")
    validation: float = Field(default=0.1, gt=0, lt=1, description="share of tables held out")
    patience: int | None = Field(default=50, ge=1, description="epochs without a lower loss that end training")
    device: str = Field(default="cpu", description="a torch device")
