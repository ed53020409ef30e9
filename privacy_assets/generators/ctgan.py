"""CTGAN and TVAE (Xu et al., Modeling tabular data using conditional GAN, 2019), trained by the ctgan library.

The library is imported where it is used: its licence, BUSL-1.1, is not that of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.generators.ctgan_fitting import LARGEST, FittedLibrary, LibraryGenerator
from privacy_assets.settings import Layers, declared

if TYPE_CHECKING:
    import torch
    from torch import nn

_TEMPERATURE = 0.2  # of the library's Gumbel softmax


@declared
class CTGAN(LibraryGenerator):
    """A generative adversarial network that is told which category of which column to make (Xu et al. 2019).

    A number is a component of a Gaussian mixture and a place within it. The generator makes every row for one given
    category: in training one of a column drawn by log frequency (``log_frequency``) or frequency, afterwards by
    frequency (the library goes on with log frequency, and so makes rare categories too frequent). The discriminator
    judges ``pac`` rows together, so ``batch_size`` must be even and a multiple of it. Defaults are those of the library
    and the paper: ``epochs`` of 300, Adam with learning rates 0.0002, two hidden layers of 256 each. ``embedding_dim``
    is the width of the noise, ``discriminator_steps`` the steps of the discriminator for each one of the generator.

    A missing number is a category of its own. Numbers stay within the range of the training rows; whole numbers and
    whole days stay whole. Training for many epochs on few rows can repeat them: let the gate judge. A GAN has no loss
    that says when to stop, and the library can neither stop early nor go on with an interrupted fit, which starts anew.
    ``history`` has the losses of the last batch of each epoch.
    """

    name = "ctgan"
    summary = "CTGAN: a conditional generative adversarial network for tables, by the ctgan library."

    epochs: int = Field(default=300, ge=1, description="passes over the training rows")
    batch_size: int = Field(default=500, ge=1, description="rows of a step: even, and a multiple of pac")
    pac: int = Field(default=10, ge=1, description="rows that the discriminator sees together")
    embedding_dim: int = Field(default=128, ge=1, description="size of the noise")
    generator_dim: Layers = Field(default=(256, 256), min_length=1, description="of the generator's layers")
    discriminator_dim: Layers = Field(default=(256, 256), min_length=1, description="of the discriminator's layers")
    generator_lr: float = Field(default=2e-4, gt=0, le=LARGEST, description="learning rate of the generator")
    generator_decay: float = Field(default=1e-6, ge=0, le=LARGEST, description="weight decay of the generator")
    discriminator_lr: float = Field(default=2e-4, gt=0, le=LARGEST, description="learning rate of the discriminator")
    discriminator_decay: float = Field(default=1e-6, ge=0, le=LARGEST, description="weight decay of the discriminator")
    discriminator_steps: int = Field(default=1, ge=1, description="steps of the discriminator for one of the generator")
    log_frequency: bool = Field(default=True, description="categories by the logarithm of their frequency")

    def __post_init__(self) -> None:
        if self.batch_size % 2 or self.batch_size % self.pac:
            raise ConfigError(f"generator ctgan: batch_size must be even and a multiple of pac ({self.pac}).")

    def synthesizer(self) -> type:
        """See :meth:`LibraryGenerator.synthesizer`."""
        from ctgan import CTGAN as Synthesizer  # noqa: N811

        return Synthesizer

    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """See :meth:`LibraryGenerator.losses`."""
        last = values.iloc[-1]
        return {
            "generator_loss": float(last["Generator Loss"]),
            "discriminator_loss": float(last["Discriminator Loss"]),
        }

    def learned(self, model: Any) -> tuple[nn.Module, np.ndarray]:
        """See :meth:`LibraryGenerator.learned`."""
        counts = np.array(
            [len(rows) for column in model._data_sampler._rid_by_cat_cols for rows in column], dtype=float
        )
        return model._generator, counts / max(counts.sum(), 1)

    def network(self, width: int, conditions: int) -> nn.Module:
        """See :meth:`LibraryGenerator.network`."""
        from ctgan.synthesizers.ctgan import Generator as Network
        from torch.nn import BatchNorm1d

        network: nn.Module = Network(self.embedding_dim + conditions, self.generator_dim, width)
        for module in network.modules():
            if isinstance(module, BatchNorm1d):  # the library samples with the statistics of the batch
                module.track_running_stats = False
        return network

    def batch(self, fitted: FittedLibrary, noise: torch.Generator, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`LibraryGenerator.batch`."""
        import torch

        size, places = self.batch_size, len(fitted.conditions)
        zeros = torch.zeros(size, self.embedding_dim)
        fed = torch.normal(zeros, zeros + 1, generator=noise)
        if places:
            chosen = torch.from_numpy(rng.choice(places, size, p=fitted.conditions))
            fed = torch.cat([fed, torch.nn.functional.one_hot(chosen, places).to(fed.dtype)], dim=1)
        raw, start, out = fitted.network(fed), 0, np.empty((len(fitted.spans), size))
        for row, span in zip(out, fitted.spans, strict=True):
            within = torch.tanh(raw[:, start]).numpy().astype(np.float64)
            logits = raw[:, start + span.is_number : start + span.width]
            gumbel = -torch.empty(logits.shape).exponential_(generator=noise).log()
            soft = torch.softmax((logits + gumbel) / _TEMPERATURE, dim=-1)
            row[:] = span.decode(soft.numpy().argmax(axis=1), within)
            start += span.width
        return out


@declared
class TVAE(LibraryGenerator):
    """A variational autoencoder (Xu et al. 2019) that sees tables as :class:`CTGAN` does, without conditions.

    Defaults are those of the library and the paper: ``epochs`` of 300, two hidden layers of 128 each in the encoder
    (``compress_dims``) and decoder (``decompress_dims``), a latent space of ``embedding_dim``, weight decay
    ``l2scale``, and a reconstruction that counts ``loss_factor`` times.

    Missing values, ranges, whole numbers and the warning about few rows are those of :class:`CTGAN`. The library holds
    no validation rows back: it can neither stop early nor go on with an interrupted fit, which starts anew.
    ``history`` has the mean loss of the batches of each epoch.
    """

    name = "tvae"
    summary = "TVAE: a variational autoencoder for tables, by the ctgan library."

    epochs: int = Field(default=300, ge=1, description="passes over the training rows")
    batch_size: int = Field(default=500, ge=1, description="rows of a step")
    embedding_dim: int = Field(default=128, ge=1, description="size of the latent code")
    compress_dims: Layers = Field(default=(128, 128), min_length=1, description="widths of the encoder's layers")
    decompress_dims: Layers = Field(default=(128, 128), min_length=1, description="widths of the decoder's layers")
    l2scale: float = Field(default=1e-5, ge=0, le=LARGEST, description="weight decay")
    loss_factor: float = Field(default=2.0, gt=0, le=LARGEST, description="weight of the reconstruction")

    def synthesizer(self) -> type:
        """See :meth:`LibraryGenerator.synthesizer`."""
        from ctgan import TVAE as Synthesizer  # noqa: N811

        return Synthesizer

    def losses(self, values: pd.DataFrame) -> dict[str, float]:
        """See :meth:`LibraryGenerator.losses`."""
        return {"loss": float(values["Loss"][values["Epoch"] == values["Epoch"].iloc[-1]].mean())}

    def learned(self, model: Any) -> tuple[nn.Module, np.ndarray]:
        """See :meth:`LibraryGenerator.learned`."""
        return model.decoder, np.empty(0)

    def network(self, width: int, conditions: int) -> nn.Module:
        """See :meth:`LibraryGenerator.network`."""
        from ctgan.synthesizers.tvae import Decoder

        network: nn.Module = Decoder(self.embedding_dim, self.decompress_dims, width)
        return network

    def batch(self, fitted: FittedLibrary, noise: torch.Generator, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`LibraryGenerator.batch`."""
        import torch

        zeros = torch.zeros(self.batch_size, self.embedding_dim)
        raw, deviations = fitted.network(torch.normal(zeros, zeros + 1, generator=noise))
        made, start, out = torch.tanh(raw).numpy(), 0, np.empty((len(fitted.spans), self.batch_size))
        for row, span in zip(out, fitted.spans, strict=True):
            within = made[:, start].astype(np.float64)
            if span.is_number:
                within = rng.normal(within, deviations[start].item())
            row[:] = span.decode(made[:, start + span.is_number : start + span.width].argmax(axis=1), within)
            start += span.width
        return out
