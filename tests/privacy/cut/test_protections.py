"""What each protection of the cut does to numbers, by its formula."""

import math
from typing import Any

import numpy as np
import pytest

from coterie.errors import ArgumentValueError
from coterie.privacy.audit.cut import label_leak
from coterie.privacy.cut import embeddings, gradients, labels
from coterie.privacy.dp import normal
from coterie.protocol.cut import EmbeddingNoise, GradientNoise, RandomisedLabels
from coterie.randomness import seed_of

KEY = seed_of("cut")


def some(rows: int, width: int, seed: int = 1) -> Any:
    """Normal numbers."""
    return np.random.Generator(np.random.PCG64(seed)).normal(size=(rows, width)).astype(np.float32)


def classes(rows: int = 400, width: int = 6) -> tuple[Any, Any]:
    """Gradients of two classes, one rare and long."""
    y = (np.arange(rows) % 5 == 0).astype(np.int32)
    means = np.where(y[:, None] == 1, 1.0, -0.25) * np.ones(width)
    return (means + 0.1 * some(rows, width)).astype(np.float32), y


def many(noise: GradientNoise, turns: int = 1500) -> Any:
    """What is sent for one batch, under many keys."""
    g, y = classes(20, 4)
    return g, y, np.stack([gradients.protect(g, y, noise, seed_of("turn", str(turn))) for turn in range(turns)])


def test_one_key_gives_one_noise() -> None:
    g, y = classes()
    noise = EmbeddingNoise(clip=1.0, deviation=0.5)
    for kind in ("max_norm", "gaussian", "marvell"):
        protect = GradientNoise(kind=kind)
        one = gradients.protect(g, y, protect, KEY)
        np.testing.assert_array_equal(one, gradients.protect(g, y, protect, KEY))
        assert (one != gradients.protect(g, y, protect, seed_of("another"))).any() and one.dtype == np.float32
    np.testing.assert_array_equal(embeddings.protect(g, noise, KEY), embeddings.protect(g, noise, KEY))
    assert (embeddings.protect(g, noise, KEY) != embeddings.protect(g, noise, seed_of("another"))).any()


def test_max_norm_makes_all_as_long_as_the_longest_and_keeps_the_mean() -> None:
    g, _, sent = many(GradientNoise(kind="max_norm"))
    longest = np.sqrt((g.astype(float) ** 2).sum(axis=1)).max()
    squares = (sent**2).sum(axis=2).mean(axis=0)
    # The square of a normal number has the deviation √2; five standard errors.
    np.testing.assert_allclose(squares, longest**2, rtol=5 * math.sqrt(2 / 1500) * 1.3)
    np.testing.assert_allclose(sent.mean(axis=0), g, atol=5 * longest / math.sqrt(1500))
    # Noise is along the gradient: the line through the origin is kept.
    unit = g / np.linalg.norm(g, axis=1, keepdims=True)
    across = sent - (sent * unit).sum(axis=2, keepdims=True) * unit
    assert np.abs(across).max() < 1e-4


def test_a_gradient_of_zeros_is_hidden_too() -> None:
    g = np.zeros((3, 4), np.float32)
    g[0] = 2.0
    sent = gradients.protect(g, np.array([1, 0, 0]), GradientNoise(kind="max_norm"), KEY)
    assert (np.linalg.norm(sent, axis=1) > 0).all()
    np.testing.assert_array_equal(
        gradients.protect(np.zeros((2, 3), np.float32), np.array([0, 1]), GradientNoise(kind="marvell"), KEY), 0.0
    )


def test_isotropic_noise_has_the_norm_that_is_asked_for() -> None:
    g, _, sent = many(GradientNoise(kind="gaussian", scale=2.0))
    longest = np.sqrt((g.astype(float) ** 2).sum(axis=1)).max()
    noise = sent - g
    np.testing.assert_allclose((noise**2).sum(axis=2).mean(), (2 * longest) ** 2, rtol=0.03)
    assert np.abs(np.corrcoef(noise.reshape(-1, 4).T) - np.eye(4)).max() < 0.05


def _divergence(sent: Any, y: Any) -> float:
    """KL(0‖1) + KL(1‖0) of normal laws with the moments of both classes."""
    one, other = sent[y == 0], sent[y == 1]
    means, spreads = [part.mean(axis=0) for part in (one, other)], [np.cov(part.T) for part in (one, other)]
    apart, width = means[1] - means[0], sent.shape[1]
    total = 0.0
    for a, b in ((0, 1), (1, 0)):
        inverse = np.linalg.inv(spreads[b])
        total += 0.5 * (np.trace(inverse @ spreads[a]) - width + apart @ inverse @ apart)
    return float(total)


def test_marvell_makes_classes_more_alike_than_isotropic_noise_of_the_same_power() -> None:
    g, y = classes(4000)
    sent = gradients.protect(g, y, GradientNoise(kind="marvell", scale=4.0), KEY)
    power = float(((sent - g) ** 2).sum(axis=1).mean())
    between = g[y == 1].mean(axis=0) - g[y == 0].mean(axis=0)
    np.testing.assert_allclose(power, 4.0 * float(between @ between), rtol=0.1)
    longest = float(np.linalg.norm(g, axis=1).max())
    isotropic = gradients.protect(g, y, GradientNoise(kind="gaussian", scale=math.sqrt(power) / longest), KEY)
    np.testing.assert_allclose(float(((isotropic - g) ** 2).sum(axis=1).mean()), power, rtol=0.05)
    assert _divergence(sent, y) < 0.5 * _divergence(isotropic, y) < 0.5 * _divergence(g, y)


def test_marvell_does_not_hide_the_longer_class_where_the_means_lie_together() -> None:
    """As docs/split.md says: its noise is measured by the distance of the means."""
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.3).astype(int)
    lengths = np.where(labels, 3.0, 0.3)[:, None]
    sent = {
        kind: gradients.protect(rng.normal(size=(400, 8)) * lengths, labels, GradientNoise(kind=kind), KEY)
        for kind in ("marvell", "max_norm")
    }
    assert label_leak(sent["marvell"], labels).norm > 0.95
    assert label_leak(sent["max_norm"], labels).norm < 0.6


def test_marvell_hides_a_batch_of_one_class_in_isotropic_noise() -> None:
    g, y = classes(50)
    alone = g[y == 0]
    sent = gradients.protect(alone, np.zeros(len(alone)), GradientNoise(kind="marvell"), KEY)
    longest = float(np.linalg.norm(alone, axis=1).max())
    np.testing.assert_allclose(np.sqrt(((sent - alone) ** 2).sum(axis=1).mean()), longest, rtol=0.25)


def test_an_embedding_is_shortened_and_noised() -> None:
    rows = 5 * some(3000, 8)
    noise = EmbeddingNoise(clip=1.5, deviation=0.25)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    bounded = rows * np.minimum(1.0, 1.5 / lengths)
    added = embeddings.protect(rows, noise, KEY) - bounded
    np.testing.assert_allclose(added.std(axis=0), 0.25, rtol=0.08)
    assert np.abs(added.mean(axis=0)).max() < 5 * 0.25 / math.sqrt(3000)
    # What is shorter stays, and a row of zeros is one of noise.
    quiet = EmbeddingNoise(clip=1e3, deviation=1e-3)
    np.testing.assert_allclose(embeddings.protect(rows, quiet, KEY), rows, atol=6e-3)
    assert np.isfinite(embeddings.protect(np.zeros((2, 3)), noise, KEY)).all()


def test_the_cost_of_an_embedding_is_that_of_a_gaussian() -> None:
    noise = EmbeddingNoise(clip=1.0, deviation=8.0)
    once = embeddings.cost(noise, width=16, times=1, delta=1e-5)
    np.testing.assert_allclose(once, normal.epsilon_of(2.0 / 8.0, 1e-5), rtol=1e-4)
    assert once >= normal.epsilon_of(2.0 / 8.0, 1e-5)
    four = embeddings.cost(noise, width=16, times=4, delta=1e-5)
    np.testing.assert_allclose(four, normal.epsilon_of(2 * 2.0 / 8.0, 1e-5), rtol=1e-4)
    for width, times, delta in ((0, 1, 1e-5), (1, 0, 1e-5), (1, 1, 0.0)):
        with pytest.raises(ArgumentValueError):
            embeddings.cost(noise, width=width, times=times, delta=delta)


@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 2), (2.0, 2), (1.0, 5)])
def test_labels_are_true_as_often_as_the_formula_says(epsilon: float, count: int) -> None:
    noise, rows = RandomisedLabels(epsilon=epsilon), 20_000
    truth = (np.arange(rows) % count).astype(np.int32)
    given = labels.protect(truth, count, noise, KEY)
    keep = math.exp(epsilon) / (count - 1 + math.exp(epsilon))
    np.testing.assert_allclose(labels.kept(noise, count), keep, rtol=1e-12)
    assert given.dtype == np.int32 and set(np.unique(given)) == set(range(count))
    assert abs((given == truth).mean() - keep) < 5 * math.sqrt(keep * (1 - keep) / rows)
    # The others are equally likely.
    wrong = (given - truth)[given != truth] % count
    shares = np.bincount(wrong, minlength=count)[1:] / len(wrong)
    assert np.abs(shares - 1 / (count - 1)).max() < 5 * math.sqrt(0.25 / len(wrong))
    if count == 2:
        np.testing.assert_allclose(1 - keep, 1 / (1 + math.exp(epsilon)))


def test_a_label_that_is_no_class_is_refused() -> None:
    for wrong in (-1, 2):
        with pytest.raises(ArgumentValueError, match="not one of 2"):
            labels.protect(np.array([0, wrong], np.int32), 2, RandomisedLabels(epsilon=1.0), KEY)
