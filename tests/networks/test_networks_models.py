"""Losses of RVAE and WGAN-GP against their definitions."""

from __future__ import annotations

import pytest
import torch

from privacy_assets.networks.models import RvaeNetwork, gradient_penalty, sliced_distance
from privacy_assets.networks.training import Shape


def test_the_loss_of_rvae_is_its_definition() -> None:
    """By cell: a mixture of the decoder's likelihood and a wide one, and the divergence of the
    posterior.
    """
    torch.manual_seed(0)
    network = RvaeNetwork(Shape(2, [3]), [5], 2, 0.0)
    levels, codes, clean = torch.tensor([[0.3, 0.8], [0.5, 0.1]]), torch.tensor([[1], [2]]), 0.9
    scores = torch.special.ndtri(levels)
    torch.manual_seed(1)
    found = network.loss(levels, codes, clean)
    torch.manual_seed(1)
    total = 0.0
    mean, log_variance = network.encoder(network.shape.expand(scores, codes)).chunk(2, dim=1)
    z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    out = network.decoder(z)
    for row in range(2):
        for number in range(2):
            own = (
                torch.distributions.Normal(out[row, number], 1.0)
                .log_prob(scores[row, number])
                .exp()
            )
            wide = torch.distributions.Normal(0.0, 2.0).log_prob(scores[row, number]).exp()
            total -= torch.log(clean * own + (1 - clean) * wide)
        share = torch.softmax(out[row, 2:], 0)[codes[row, 0]]
        total -= torch.log(clean * share + (1 - clean) / 3)
        posterior = torch.distributions.Normal(mean[row], (0.5 * log_variance[row]).exp())
        total += torch.distributions.kl_divergence(
            posterior, torch.distributions.Normal(0.0, 1.0)
        ).sum()
    assert float(found) == pytest.approx(float(total) / 2, rel=1e-5)


def test_an_outlier_moves_a_robust_loss_less() -> None:
    torch.manual_seed(0)
    network = RvaeNetwork(Shape(1, []), [5], 2, 0.0)
    codes = torch.zeros(1, 0, dtype=torch.int64)

    def rise(clean: float) -> float:
        losses = []
        for level in (0.5, 0.9999):
            torch.manual_seed(1)
            losses.append(float(network.loss(torch.tensor([[level]]), codes, clean)))
        return losses[1] - losses[0]

    network.log_sigma.data.fill_(-1.0)
    assert rise(0.95) < rise(1.0) / 2


def test_the_penalty_is_the_distance_of_the_gradient_norm_from_one() -> None:
    real, fake = torch.rand(6, 3), torch.rand(6, 3)
    weights = torch.tensor([3.0, 4.0, 0.0])
    assert float(gradient_penalty(lambda rows: rows @ weights, real, fake)) == pytest.approx(16.0)


def test_the_sliced_distance() -> None:
    rows = torch.rand(200, 4)
    assert sliced_distance(rows, rows[torch.randperm(200)], 0) < 1e-6
    assert sliced_distance(rows, torch.rand(200, 4), 0) < sliced_distance(
        rows, torch.rand(200, 4) + 0.2, 0
    )
    assert sliced_distance(rows, rows + 1.0, 0) == pytest.approx(
        sliced_distance(rows + 1.0, rows, 0)
    )
