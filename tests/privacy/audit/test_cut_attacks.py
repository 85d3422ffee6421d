"""Attacks on the cut: they see what there is to see, and nothing in noise."""

from typing import Any

import numpy as np
import pytest

from coterie.errors import ArgumentValueError
from coterie.privacy.audit.cut import column_leak, direction_scores, label_leak, norm_scores


def some(*shape: int) -> Any:
    """Normal numbers."""
    return np.random.Generator(np.random.PCG64(2)).normal(size=shape).astype(np.float32)


LABELS = (np.arange(2000) % 4 == 0).astype(np.int32)


def test_gradients_that_say_nothing_of_labels_leak_nothing() -> None:
    found = label_leak(some(2000, 5), LABELS)
    assert (found.rows, found.positive) == (2000, 500)
    # The deviation of an area of 500 and 1500 rows is about 0.015.
    assert found.norm < 0.56 and abs(found.direction - 0.5) < 0.05


def test_longer_gradients_of_a_class_are_told_by_their_norm_whichever_class_it_is() -> None:
    length = np.where(LABELS == 1, 3.0, 1.0)[:, None]
    unit = some(2000, 5)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for each in (length, 1 / length):
        found = label_leak(unit * each, LABELS)
        assert found.norm == 1.0 and abs(found.direction - 0.5) < 0.05


def test_gradients_that_point_apart_are_told_by_one_known_row() -> None:
    way = np.where(LABELS == 1, 1.0, -1.0)[:, None] * np.ones(5)
    gradients = way / np.sqrt(5) * np.abs(some(2000, 1))
    found = label_leak(gradients, LABELS)
    assert found.direction == 1.0 and found.norm < 0.56
    np.testing.assert_allclose(direction_scores(gradients, gradients[0])[:2], [1, -1], rtol=1e-6)
    np.testing.assert_array_equal(direction_scores(np.zeros((2, 5)), gradients[0]), 0.0)
    np.testing.assert_allclose(norm_scores(np.array([[3.0, 4.0]])), 5.0)


def test_columns_are_read_off_a_linear_embedding_and_not_off_noise() -> None:
    columns = some(500, 3)
    told = columns @ some(3, 4) + 1.0
    assert column_leak(told, columns, known=50) > 0.999
    assert column_leak(some(500, 4), columns, known=250) < 0.1
    # A narrower embedding tells a part.
    assert 0.1 < column_leak(told[:, :1], columns, known=250) < 0.8
    assert column_leak(told, np.ones(500), known=50) == 0.0


def test_what_cannot_be_judged_is_refused() -> None:
    for gradients, labels in (
        (some(10, 2), np.zeros(10)),
        (some(10, 2), np.ones(10)),
        (some(9, 2), LABELS[:10]),
        (some(10), LABELS[:10]),
    ):
        with pytest.raises(ArgumentValueError, match="label_leak"):
            label_leak(gradients, labels)
    for known in (1, 9):
        with pytest.raises(ArgumentValueError, match="column_leak"):
            column_leak(some(10, 2), some(10, 1), known=known)
