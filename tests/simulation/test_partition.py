"""The laws of partitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigurationError
from coterie.simulation import dirichlet, iid, split

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array)


@given(LABELS, st.integers(1, 20), st.floats(0.01, 100), st.integers(0, 2**32))
def test_dirichlet_gives_every_row_to_one_client_and_leaves_none_empty(
    labels: np.ndarray, clients: int, alpha: float, seed: int
) -> None:
    clients = min(clients, len(labels))
    parts = dirichlet(labels, clients, alpha=alpha, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert len(parts) == clients and min(map(len, parts)) >= 1
    again = dirichlet(labels, clients, alpha=alpha, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_iid_parts_differ_by_one_row_at_most(count: int, clients: int, seed: int) -> None:
    clients = min(clients, count)
    parts = iid(count, clients, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    again = iid(count, clients, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def skew(labels: np.ndarray, alpha: float) -> float:
    """Mean over clients of the share of their most frequent class."""
    shares = [np.bincount(labels[part]).max() / len(part) for part in dirichlet(labels, 10, alpha=alpha, seed=1)]
    return float(np.mean(shares))


def test_small_alpha_is_skewed_and_large_alpha_is_even() -> None:
    labels = np.arange(5000) % 10
    skews = [skew(labels, alpha) for alpha in (0.05, 0.5, 5, 500)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5 and skews[-1] < 0.15


def test_each_client_has_the_minimum_even_when_the_draw_gives_it_nothing() -> None:
    parts = dirichlet(np.zeros(100, int), 20, alpha=0.01, seed=0, minimum=4)
    assert min(map(len, parts)) == 4 and sum(map(len, parts)) == 100


def test_another_seed_is_another_partition() -> None:
    labels = np.arange(500) % 10
    first, second = (dirichlet(labels, 5, alpha=1, seed=seed) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_split_takes_the_rows() -> None:
    arrays = {"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}
    (first, second) = split(arrays, [np.array([0, 2]), np.array([1])])
    assert first["x"].tolist() == [[0, 1], [4, 5]] and second["y"].tolist() == [1]


def test_impossible_wishes_are_refused() -> None:
    for make in (
        lambda: iid(3, 4, seed=0),
        lambda: iid(3, 0, seed=0),
        lambda: dirichlet(np.zeros(3), 2, alpha=0, seed=0),
        lambda: dirichlet(np.zeros(3), 2, alpha=float("inf"), seed=0),
        lambda: dirichlet(np.zeros(7), 2, alpha=1, seed=0, minimum=4),
    ):
        with pytest.raises(ConfigurationError):
            make()
