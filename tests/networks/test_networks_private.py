"""Differentially private training: an independent accountant, and brute force for gradients and
votes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from privacy_assets.errors import ConfigError
from privacy_assets.networks import private
from privacy_assets.networks.private import (
    ConditionalSampler,
    PateSteps,
    PrivateSteps,
    Student,
    Teachers,
    epsilon_of,
    noise_for,
    noisy_shares,
    vote_noise,
)
from privacy_assets.networks.training import GanSampler, Shape, layers
from tests.helpers.marks import weekly_except


def own_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon of ``steps`` sampled Gaussians, by convolving privacy loss distributions on an
    independent grid.
    """
    worst = 0.0
    x = np.linspace(-12 * noise, 12 * noise + 1, 1_000_001)
    base = stats.norm.pdf(x, 0, noise)
    mixed = (1 - rate) * base + rate * stats.norm.pdf(x, 1, noise)
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    size, cell = 2**19, 1e-4
    for density, losses in ((mixed, loss), (base, -loss)):
        mass = density * (x[1] - x[0])
        at = np.round(losses / cell).astype(np.int64)
        grid = np.bincount(at % size, weights=mass, minlength=size)  # negative losses wrap around
        total = np.real(np.fft.ifft(np.fft.fft(grid) ** steps))
        values = (np.arange(size) - size * (np.arange(size) > size // 2)) * cell

        def excess(epsilon: float, values: np.ndarray = values, total: np.ndarray = total) -> float:
            above = values > epsilon
            return float((total[above] * -np.expm1(epsilon - values[above])).sum()) - delta

        low, high = 0.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(1.0, 0.01, 500), (1.5, 0.1, 100), (5.0, 0.25, 400)]
)
def test_epsilon_agrees_with_an_independent_accountant(
    noise: float, rate: float, steps: int
) -> None:
    assert epsilon_of([(noise, rate, steps)], 1e-5, 1e-3) == pytest.approx(
        own_epsilon(noise, rate, steps, 1e-5), rel=0.01
    )


def test_epsilon_without_sampling_is_that_of_one_gaussian() -> None:
    """Balle and Wang 2018, theorem 8."""
    noise, steps, delta = 4.0, 9, 1e-5
    epsilon = epsilon_of([(noise, 1.0, steps)], delta, 1e-3)
    mu = math.sqrt(steps) / noise
    found = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert found == pytest.approx(delta, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "before"),
    weekly_except(
        [(0.3, ()), (0.3, ((30.0, 1.0, 1),)), (3.0, ((30.0, 1.0, 1),))], (3.0, ((30.0, 1.0, 1),))
    ),
)
def test_the_noise_is_the_least_that_keeps_within_the_budget(
    epsilon: float, before: tuple[tuple[float, float, int], ...]
) -> None:
    precision = min(epsilon / 100, 0.01)
    noise = noise_for(epsilon, 1e-5, 0.05, 200, before)
    assert epsilon_of([*before, (noise, 0.05, 200)], 1e-5, precision) <= epsilon
    assert epsilon_of([*before, (noise / 1.03, 0.05, 200)], 1e-5, precision) > epsilon


def test_an_accountant_that_returns_nan_keeps_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_rough_epsilon", lambda *_: 0.0)
    monkeypatch.setattr(private, "epsilon_of", lambda *_: math.nan)
    with pytest.raises(ConfigError, match="budget is too small"):
        noise_for(1.0, 1e-5, 0.05, 200)


def test_a_budget_that_no_noise_keeps() -> None:
    # all rows in each step: quicker to account for
    with pytest.raises(ConfigError, match="budget is too small"):
        noise_for(0.5, 1e-5, 1.0, 10, ((0.5, 1.0, 1),))
    for epsilon in (1e-3, 1e-6):
        with pytest.raises(ConfigError, match="budget is too small"):
            vote_noise(epsilon, 1e-5, 100)


# Gradients


SHAPE = Shape(0, [3, 2])
CODES = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1], [0, 0]])


def steps_of(
    codes: torch.Tensor, clip: float, noise: float, *, wasserstein: float | None, conditional: bool
):
    torch.manual_seed(0)
    kind = ConditionalSampler if conditional else GanSampler
    sampler = kind(SHAPE, [4], 3)
    if conditional:
        sampler.shares.copy_(noisy_shares(codes, SHAPE, 0.0, np.random.default_rng(0)))
    critic = layers(SHAPE.width * (1 + conditional), [4], 1, slope=0.2)
    steps = PrivateSteps(
        sampler,
        critic,
        codes,
        rate=1.0,
        max_grad_norm=clip,
        noise=noise,
        learning_rate=0.0,
        wasserstein=wasserstein,
    )
    steps.use(np.random.default_rng(0))
    return steps, critic


def gradients_of(steps: PrivateSteps, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    steps.critic_step()
    return torch.cat([weight.grad.flatten() for weight in steps.critic.parameters()])


def clipped_by_hand(
    critic: torch.nn.Module, rows: torch.Tensor, sign: float, wasserstein: bool, clip: float
) -> torch.Tensor:
    total = 0.0
    for row in rows:
        score = critic(row[None]).squeeze()
        loss = sign * score if wasserstein else torch.nn.functional.softplus(sign * score)
        flat = torch.cat(
            [one.flatten() for one in torch.autograd.grad(loss, list(critic.parameters()))]
        )
        total = total + flat * min(1.0, clip / (float(flat.norm()) + 1e-6))
    return total / len(rows)


@pytest.mark.parametrize("wasserstein", [None, 0.5])
@pytest.mark.parametrize("clip", [0.01, 100.0])
def test_gradients_of_rows_are_clipped_one_by_one(wasserstein: float | None, clip: float) -> None:
    steps, critic = steps_of(CODES, clip, 0.0, wasserstein=wasserstein, conditional=False)
    real = SHAPE.expand(torch.zeros(5, 0), CODES)
    plain = clipped_by_hand(critic, real, -1.0, wasserstein is not None, clip)
    torch.manual_seed(3)
    made = steps.sampler.rows(5, torch.device("cpu")).detach()
    expected = plain + clipped_by_hand(critic, made, 1.0, wasserstein is not None, clip)
    assert torch.allclose(gradients_of(steps, 3), expected, atol=1e-5)


def test_the_noise_on_gradients_has_the_size_that_was_accounted_for() -> None:
    clip, noise = 0.5, 3.0
    without, _ = steps_of(CODES, clip, 0.0, wasserstein=None, conditional=False)
    plain = gradients_of(without, 3)
    with_noise, _ = steps_of(CODES, clip, noise, wasserstein=None, conditional=False)
    errors = torch.stack([gradients_of(with_noise, 3) - plain for _ in range(60)]).flatten().numpy()
    assert stats.kstest(errors, stats.norm(0, noise * clip / len(CODES)).cdf).pvalue > 1e-3


def test_rows_that_are_not_drawn_change_nothing_but_the_noise() -> None:
    steps, _ = steps_of(CODES, 1.0, 0.0, wasserstein=None, conditional=True)
    steps.rate = 0.0
    first = gradients_of(steps, 5)
    other, _ = steps_of(CODES.flip(1) * 0, 1.0, 0.0, wasserstein=None, conditional=True)
    other.rate, other.sampler.shares = 0.0, steps.sampler.shares
    assert torch.allclose(first, gradients_of(other, 5)) and first.abs().sum() > 0


def test_a_real_row_brings_a_condition_that_it_meets() -> None:
    steps, _ = steps_of(CODES, 1.0, 0.0, wasserstein=None, conditional=True)
    rows = SHAPE.expand(torch.zeros(5, 0), CODES)
    torch.manual_seed(0)
    seen = torch.zeros(2)
    for _ in range(200):
        asked = steps._with_conditions(rows, CODES)[:, SHAPE.width :]
        assert (asked.sum(1) == 1).all() and ((asked * rows).sum(1) == 1).all()
        seen += torch.stack([asked[:, :3].sum(), asked[:, 3:].sum()])
    assert float(seen[0] / seen.sum()) == pytest.approx(0.5, abs=0.07)


@pytest.mark.slow
def test_noisy_shares() -> None:
    rng = np.random.default_rng(0)
    exact = noisy_shares(CODES, SHAPE, 0.0, rng)
    assert exact.tolist() == pytest.approx([0.2, 0.1, 0.2, 0.2, 0.3])
    noisy = noisy_shares(CODES, SHAPE, 1e6, rng)
    assert (
        noisy.sum() == pytest.approx(1.0, abs=1e-5)
        and (noisy >= 0).all()
        and not torch.allclose(noisy, exact)
    )
    big = CODES.repeat(20_000, 1)
    counted = (
        torch.stack([noisy_shares(big, SHAPE, 50.0, rng) for _ in range(400)])[:, 3] * 2 * 100_000
    )
    # one count, and its column's sum
    assert float(counted.std()) == pytest.approx(50.0 * math.sqrt(2) * 0.72, rel=0.2)


# Votes


def test_the_noise_on_votes_is_that_of_the_moments() -> None:
    scale = vote_noise(1.0, 1e-5, 1000)
    orders = np.arange(1.0, 5000.0)
    spent = ((1000 * 2 * orders * (orders + 1) / scale**2 - math.log(1e-5)) / orders).min()
    assert spent == pytest.approx(1.0, rel=1e-6)
    assert vote_noise(0.1, 1e-5, 1000) > scale < vote_noise(1.0, 1e-5, 2000)
    assert vote_noise(0.01, 1e-5, 10) < math.inf


def test_a_moment_bounds_the_privacy_loss_of_a_noisy_label() -> None:
    """The label's exact probabilities, when one teacher of 20 changes its vote."""
    scale, orders = 8.0, np.arange(1.0, 51.0)
    gaps = np.arange(-20, 21, 2)
    noise = np.random.default_rng(0).laplace(size=(2, 400_000), scale=scale)
    for real in gaps[1:]:
        first, second = (float((gap + noise[0] - noise[1] > 0).mean()) for gap in (real, real - 2))
        p, q = np.array([first, 1 - first]), np.array([second, 1 - second])
        moments = np.log((p[:, None] * (p / q)[:, None] ** orders).sum(0))
        assert (moments <= 2 * orders * (orders + 1) / scale**2 + 1e-3).all()


def test_every_teacher_votes_for_half_of_the_rows() -> None:
    torch.manual_seed(0)
    teachers = Teachers(7, 5)
    for weight in teachers.parameters():
        torch.nn.init.normal_(weight)
    rows = torch.rand(10, 5)
    assert int(teachers.votes(rows).sum()) == 7 * 5
    by_hand = torch.zeros(10, dtype=torch.int64)
    for k in range(7):
        hidden = torch.nn.functional.leaky_relu(
            rows @ teachers.first[k] + teachers.first_level[k], 0.2
        )
        scores = (hidden @ teachers.last[k] + teachers.last_level[k])[:, 0]
        by_hand += (scores > scores.median()).long()
    assert torch.equal(teachers.votes(rows), by_hand)


def pate_steps(
    codes: torch.Tensor, teachers: int, positions: torch.Tensor, scale: float
) -> PateSteps:
    """Steps on the rows ``codes``, dealt to the teachers in order."""
    torch.manual_seed(0)
    shape, width = Shape(0, [2, 2]), 4 + positions.shape[1]
    data = shape.expand(torch.zeros(len(codes), 0), codes).reshape(teachers, -1, 4)
    return PateSteps(
        GanSampler(shape, [8], 3), Teachers(teachers, width), Student(width, [8], 64), data,
        torch.full((teachers,), data.shape[1]), positions=positions, batch_size=64, scale=scale,
    )  # fmt: skip


def test_teachers_tell_a_dependence_that_frequencies_do_not_show() -> None:
    """Both columns are equal in real rows; the generator draws them independently, at first with
    other frequencies.
    """
    codes = torch.arange(300)[:, None].expand(-1, 2) % 2
    steps = pate_steps(codes, 5, torch.zeros(4, 0), 1.0)
    torch.nn.init.zeros_(steps.sampler.body[-1].weight)  # independent fair columns
    torch.nn.init.zeros_(steps.sampler.body[-1].bias)
    for _ in range(150):
        steps.teach()
    pairs = torch.tensor([[0, 0], [1, 1], [0, 1], [1, 0]])
    rows = Shape(0, [2, 2]).expand(torch.zeros(4, 0), pairs)
    assert steps.teachers.votes(rows).tolist() == [5, 5, 0, 0]


def test_the_label_is_the_difference_of_the_noisy_counts() -> None:
    codes = torch.arange(40)[:, None].expand(-1, 2) % 2
    steps = pate_steps(codes, 4, torch.zeros(4, 0), 3.0)
    steps.label(0, np.random.default_rng(5))
    noise = torch.from_numpy(np.random.default_rng(5).laplace(0.0, 3.0, (2, 64)))
    with torch.no_grad():
        votes = steps.teachers.votes(steps.student.rows[0])
    assert torch.allclose(
        steps.student.labels[0], ((2 * votes - 4 + noise[0] - noise[1]) / 4).float()
    )
    rows = steps.student.rows[0]
    assert set(rows.flatten().tolist()) == {0.0, 1.0} and (rows.reshape(64, 2, 2).sum(2) == 1).all()
