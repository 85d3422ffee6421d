"""What is measured of two files: similarity, scores, batches."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.compute.export import Examples, Similarity, Thresholds, similarity
from coterie.compute.export.comparison import worst
from coterie.compute.export.examples import answers, joined, score, synthetic
from coterie.compute.ir import NDArray, Type
from coterie.errors import DataError, InputError

INF, NAN = float("inf"), float("nan")


# Known answers: cosine = a·b / |a||b|, euclidean = 1 - |a - b| / |a|, largest = max|a - b| / max|a|.
@pytest.mark.parametrize(
    ("reference", "other", "found"),
    [
        ([3.0, 4.0], [3.0, 4.0], (1.0, 1.0, 0.0)),
        ([3.0, 4.0], [6.0, 8.0], (1.0, 0.0, 1.0)),
        ([3.0, 4.0], [-3.0, -4.0], (-1.0, -1.0, 2.0)),
        ([3.0, 4.0], [4.0, -3.0], (0.0, 1 - 50**0.5 / 5, 1.75)),
        ([3.0, 4.0], [0.0, 0.0], (0.0, 0.0, 1.0)),
        ([0.0, 0.0], [0.0, 0.0], (1.0, 1.0, 0.0)),
        ([0.0, 0.0], [1.0, 0.0], (0.0, 0.0, INF)),
        ([3.0, INF, NAN], [3.0, INF, NAN], (1.0, 1.0, 0.0)),
        ([3.0, INF, 1.0], [3.0, -INF, 1.0], (0.0, 0.0, INF)),
        ([3.0, 4.0], [3.0, NAN], (0.0, 0.0, INF)),
    ],
)
def test_similarity_of_known_pairs(
    reference: Sequence[float], other: Sequence[float], found: tuple[float, float, float]
) -> None:
    made = similarity(np.array(reference), np.array(other))
    assert (made.cosine, made.euclidean, made.largest) == pytest.approx(found)


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=20), st.floats(0.5, 2.0))
def test_similarity_does_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    a = np.array(values)
    b = a + np.linspace(-1, 1, len(a))
    one, other = similarity(a, b), similarity(a * unit, b * unit)
    assert one.cosine == pytest.approx(other.cosine, abs=1e-6)
    if np.linalg.norm(a) > 1e-3:
        assert one.euclidean == pytest.approx(other.euclidean, rel=1e-6, abs=1e-6)
    assert -1 - 1e-9 <= one.cosine <= 1 + 1e-9 and one.euclidean <= 1


def test_thresholds_say_what_is_missed() -> None:
    asked = Thresholds(cosine=0.9, euclidean=0.5, largest=0.1)
    assert asked.misses(Similarity(0.9, 0.5, 0.1)) == ""
    told = asked.misses(Similarity(0.8, 0.4, 0.2))
    assert "cosine similarity 0.8 is below 0.9" in told and "euclidean" in told and "above 0.1" in told
    assert asked.misses(Similarity(NAN, 1.0, NAN)) != ""


def test_the_worst_of_several_is_the_worst_of_each() -> None:
    assert worst([Similarity(0.9, 0.2, 0.1), Similarity(0.8, 0.7, 0.3)]) == Similarity(0.8, 0.2, 0.3)
    with pytest.raises(InputError):
        worst([])
    with pytest.raises(InputError, match="differ"):
        similarity(np.zeros(2), np.zeros(3))


LOGITS = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize(
    ("outputs", "labels", "found"),
    [
        (LOGITS, np.array([1, 0, 0]), ("accuracy", 2 / 3)),
        (LOGITS[None], np.array([[1, 0, 0]]), ("accuracy", 2 / 3)),
        (np.array([[-1.0], [2.0]]), np.array([0, 1]), ("accuracy", 1.0)),
        (np.array([-1.0, 0.2]), np.array([0.0, 1.0]), ("accuracy", 1.0)),
        (np.array([[-1.0, 3.0]]), np.array([[1, 1]]), ("accuracy", 0.5)),
        (np.array([1, 0]), np.array([1, 1]), ("accuracy", 0.5)),
        (LOGITS, np.array([1.0, 0.0, 1.0]), ("accuracy", 1.0)),
        (np.array([[1.0], [3.0]]), np.array([1.5, 2.5]), ("mean_squared_error", 0.25)),
        (LOGITS, LOGITS + 2.0, ("mean_squared_error", 4.0)),
    ],
)
def test_scores_of_known_answers(outputs: NDArray, labels: NDArray, found: tuple[str, float]) -> None:
    metric, value = score(outputs, labels)
    assert (metric, value) == (found[0], pytest.approx(found[1]))


def test_one_number_a_row_is_compared_with_the_middle_between_the_classes() -> None:
    told, labels = np.array([[0.2], [0.9], [0.6]]), np.array([0, 1, 0])
    assert score(told, labels, halfway=0.5) == ("accuracy", 2 / 3)
    assert score(told, labels) == ("accuracy", 1 / 3)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"\[2\]"):
        score(LOGITS, np.array([1, 0]))
    with pytest.raises(DataError, match="no whole numbers"):
        score(LOGITS, np.array([1.0, 0.5, 0.0]))
    np.testing.assert_array_equal(answers(LOGITS), [1, 0, 1])


def test_ids_that_are_no_whole_numbers_are_refused() -> None:
    types = {"ids": Type("int32", (2,))}
    assert Examples(inputs={"ids": np.array([1.0, 2.0])}).batches(types)[0]["ids"].tolist() == [1, 2]
    for wrong in ([1.0, 2.5], [1.0, NAN], [1.0, 2.0**31], [1, 2**32 + 1]):
        with pytest.raises(DataError, match="whole ones for ids"):
            Examples(inputs={"ids": np.array(wrong)}).batches(types)


@given(st.integers(1, 30), st.integers(1, 8), st.one_of(st.none(), st.integers(1, 40)))
def test_batches_hold_rows_once_from_all_over_the_file_and_are_filled_up(
    rows: int, size: int, most: int | None
) -> None:
    x = np.arange(rows, dtype=np.float64)[:, None]
    made = Examples(inputs={"x": x}).batches({"x": Type("float32", (size, 1))}, most=most)
    count = rows if most is None else min(rows, most)
    assert all(batch["x"].shape == (size, 1) and batch["x"].dtype == np.float32 for batch in made)
    taken = joined(np.stack([batch["x"] for batch in made]), count)[:, 0]
    assert len(np.unique(taken)) == count and np.isin(taken, x).all()
    steps = np.diff([*taken, rows])
    assert taken[0] == 0 and steps.max() - steps.min() <= 1, "at even distances"


def test_synthetic_rows_are_in_range_and_the_same_every_time() -> None:
    types = {"x": Type("float32", (2, 3)), "ids": Type("int32", (2, 5)), "flag": Type("bool", (2,))}
    first, again = synthetic(types), synthetic(types)
    for one, other in zip(first, again, strict=True):
        for name, type_ in types.items():
            np.testing.assert_array_equal(one[name], other[name])
            assert Type(one[name].dtype.name, one[name].shape) == type_
        assert set(one["ids"].reshape(-1)) <= {0, 1}
