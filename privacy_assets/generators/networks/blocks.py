"""What the networks of several generators are made of: rows as one-hot vectors, layers, and choices.

A row of a layout with p numbers and choices of sizes k_1..k_q is a vector of p + k_1 + ... + k_q entries: the levels of
the numbers, then one-hot blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.embedding.network import one_thread

TEMPERATURE = 0.2  # of the relaxed choices of a GAN (Xu et al. 2019)


class Shape:
    """Sizes of a layout's vectors: ``numbers`` p and choices of ``sizes``."""

    def __init__(self, numbers: int, sizes: Sequence[int]) -> None:
        self.numbers, self.sizes = numbers, list(sizes)
        self.width = numbers + sum(self.sizes)
        ends = torch.tensor([numbers, *self.sizes]).cumsum(0)
        self.starts = ends[:-1]

    def expand(self, levels: Tensor, codes: Tensor) -> Tensor:
        """Vectors float32 (n, width) of ``levels`` (n, p) and ``codes`` int64 (n, q)."""
        out = torch.zeros(len(codes), self.width, device=codes.device)
        out[:, : self.numbers] = levels
        return out.scatter_(1, codes + self.starts.to(codes.device), 1.0)

    def choices(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """The blocks (n, k) of the choices."""
        return vectors[:, self.numbers :].split(self.sizes, dim=1) if self.sizes else ()

    def relaxed(self, logits: Tensor) -> Tensor:
        """Vectors from logits (n, width): sigmoid for numbers, Gumbel softmax for choices; differentiable."""
        parts = [torch.sigmoid(logits[:, : self.numbers])]
        parts += [F.gumbel_softmax(block, tau=TEMPERATURE) for block in self.choices(logits)]
        return torch.cat(parts, dim=1)

    def drawn(self, logits: Tensor) -> Tensor:
        """Codes int64 (n, q) drawn with the probabilities of the logits (n, width)."""
        blocks = [(block + _gumbel(block)).argmax(dim=1) for block in self.choices(logits)]
        return torch.stack(blocks, dim=1) if blocks else logits.new_zeros(len(logits), 0, dtype=torch.int64)


def _gumbel(like: Tensor) -> Tensor:
    return -torch.empty_like(like).exponential_().log()


def layers(
    inputs: int, hidden: Sequence[int], outputs: int, *, slope: float = 0.0, dropout: float | None = None
) -> nn.Module:
    """Linear layers with (leaky) ReLU and dropout between them; a dropout of 0 keeps its place among the layers."""
    parts: list[nn.Module] = []
    for size in hidden:
        parts += [nn.Linear(inputs, size), nn.LeakyReLU(slope) if slope else nn.ReLU()]
        parts += [] if dropout is None else [nn.Dropout(dropout)]
        inputs = size
    return nn.Sequential(*parts, nn.Linear(inputs, outputs))


class Sampler(nn.Module):
    """A network that makes rows from noise; ``noise`` is the width of what it is fed."""

    noise: int
    shape: Shape

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Levels float32 (rows, p) and codes int64 (rows, q), from torch's global random state."""
        raise NotImplementedError


class GanSampler(Sampler):
    """The generator of a GAN: standard normal noise to logits, with batch normalisation between layers."""

    def __init__(self, shape: Shape, hidden: Sequence[int], noise: int, conditions: int = 0) -> None:
        super().__init__()
        self.noise, self.shape = noise, shape
        parts: list[nn.Module] = []
        inputs = noise + conditions
        for size in hidden:
            parts += [nn.Linear(inputs, size), nn.BatchNorm1d(size), nn.ReLU()]
            inputs = size
        self.body = nn.Sequential(*parts, nn.Linear(inputs, shape.width))

    def logits(self, count: int, device: torch.device, conditions: Tensor | None = None) -> Tensor:
        """Logits (count, width) of new noise, under the ``conditions`` (count, c) where the network knows any."""
        noise = torch.randn(count, self.noise, device=device)
        out: Tensor = self.body(noise if conditions is None else torch.cat([noise, conditions], dim=1))
        return out

    def rows(self, count: int, device: torch.device) -> Tensor:
        """Relaxed vectors (count, width) for training."""
        return self.shape.relaxed(self.logits(count, device))

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """See :meth:`Sampler.draw`."""
        logits = self.logits(rows, device)
        return torch.sigmoid(logits[:, : self.shape.numbers]), self.shape.drawn(logits)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's global random state from ``seed`` for the ``with`` block, and as it was afterwards; one CPU thread."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), one_thread():
        torch.manual_seed(seed)
        yield
