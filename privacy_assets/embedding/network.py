"""The network of the contrastive embedder: maskings, layers and loss (Palacios 4.1, 5.2). Imports torch.

Nothing here reads or moves torch's global random state: every draw comes from the generator that is passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_CATEGORY_DIMS = 8  # width of the embedding of one cell's code
HIDDEN_LAYERS = 3


class EmbedderNetwork(nn.Module):
    """Map rows of a table to unit vectors.

    Every cell has a code and every number a value besides. ``sizes`` gives the number of codes of each column, the
    last one of which means "masked"; ``numbers`` how many of the columns, the first ones, have values. Input: an
    embedding of each cell's code beside the values. Then 3 times linear, layer norm, GELU, dropout, and one linear
    layer to ``dims``.
    """

    starts: Tensor
    masked: Tensor

    def __init__(self, sizes: Sequence[int], numbers: int, width: int, dims: int, dropout: float) -> None:
        super().__init__()
        self.numbers, self.dropout = numbers, dropout
        ends = torch.tensor(list(sizes)).cumsum(0)
        # Rows of the table of code vectors: the first one of each column, and the last, which means "masked".
        self.register_buffer("starts", ends - torch.tensor(list(sizes)), persistent=False)
        self.register_buffer("masked", ends - 1, persistent=False)
        # On the "meta" device layers are made without drawing their weights from the global generator.
        self.cells = nn.Embedding(int(ends[-1]), _CATEGORY_DIMS, device="meta")
        inputs = [numbers + len(sizes) * _CATEGORY_DIMS] + [width] * (HIDDEN_LAYERS - 1)
        self.layers = nn.ModuleList(nn.Linear(size, width, device="meta") for size in inputs)
        self.norms = nn.ModuleList(nn.LayerNorm(width, device="meta") for _ in inputs)
        self.last = nn.Linear(width, dims, device="meta")

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights on the CPU, in the way of torch's own layers."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    module.to_empty(device="cpu")
                    bound = module.in_features**-0.5
                    module.weight.uniform_(-bound, bound, generator=generator)
                    module.bias.uniform_(-bound, bound, generator=generator)
                elif isinstance(module, nn.Embedding):
                    module.to_empty(device="cpu").weight.normal_(generator=generator)
                elif isinstance(module, nn.LayerNorm):
                    module.to_empty(device="cpu").reset_parameters()

    def forward(
        self, values: Tensor, codes: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Embed rows: ``values`` float (n, numbers), ``codes`` int64 (n, columns), ``mask`` bool (n, columns).

        Returns (n, dims) of length 1. Dropout takes part when there is a ``generator`` for it.
        """
        rows = codes + self.starts
        if mask is not None:
            rows = torch.where(mask, self.masked, rows)
            values = values.masked_fill(mask[:, : self.numbers], 0.0)
        hidden = torch.cat([values, self.cells(rows).flatten(1)], dim=1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = F.gelu(norm(layer(hidden)))
            if generator is not None and self.dropout > 0:
                kept = torch.empty_like(hidden).bernoulli_(1 - self.dropout, generator=generator)
                hidden = hidden * kept.div_(1 - self.dropout)
        out = self.last(hidden)
        return F.normalize(out if out.dtype == torch.float64 else out.float(), dim=1)


def draw_mask(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Boolean (rows, columns): in each row 1 to columns - 1 are masked, the number and the places uniform.

    A table of one column cannot be masked: its two views differ by dropout only.
    """
    device = generator.device
    if columns == 1:
        return torch.zeros(rows, 1, dtype=torch.bool, device=device)
    number = torch.randint(1, columns, (rows, 1), generator=generator, device=device)
    places = torch.rand(rows, columns, generator=generator, device=device).argsort(dim=1)
    return places < number


def view_logits(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Logits (n, n): cosine similarity of view ' of row i and view '' of row j, unit vectors, over the temperature."""
    return first @ second.T / temperature


def contrastive_loss(logits: Tensor) -> Tensor:
    """Mean cross-entropy of telling each row's view ' its own view '' among one view of every row of the batch."""
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def contrastive_accuracy(logits: Tensor) -> Tensor:
    """Share of rows whose own view is the most similar one."""
    return (logits.argmax(dim=1) == torch.arange(len(logits), device=logits.device)).float().mean()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one CPU thread for the ``with`` block (for the whole process, as torch has no narrower limit).

    On batches this small threads cost more than they bring (training with two took five times the CPU time on a busy
    machine), and sums that are cut by the number of threads would make the weights depend on the machine's cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
