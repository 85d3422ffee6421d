"""What one party computes by itself: bins, sums, samples, terms and tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.aggregation.vertical.tables import read_columns
from coterie.aggregation.vertical.trees.binning import bin_columns
from coterie.aggregation.vertical.trees.histograms import built_here, sum_bins
from coterie.aggregation.vertical.trees.sampling import sample_rows
from coterie.aggregation.vertical.trees.splitting import best_split, leaf_value
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.errors import ArgumentTypeError, ConfigurationError, DataError
from coterie.protocol.conversion import to_json

BITS = 32
VALUES = st.lists(st.one_of(st.sampled_from([0.0, 1.0, -2.5, np.nan]), st.floats(-10, 10)), min_size=1, max_size=60)


def terms_of(**changes: Any) -> TreeTerms:
    return TreeTerms(label_owner="clinic", feature_owners=("registry",), **changes)


@given(VALUES, st.integers(2, 9))
def test_bins_keep_the_order_and_a_split_is_a_threshold(values: list[float], bins: int) -> None:
    column = np.array(values)
    binned = bin_columns({"x": column}, bins)
    (edges,), (missing,) = binned.edges, binned.missing
    assert len(edges) < bins and (np.diff(edges) > 0).all() and missing == np.isnan(column).any()
    assert binned.codes.max() < binned.counts[0]
    rows = np.arange(len(column))
    for place, edge in enumerate(edges):
        for missing_left in (False, True):
            expected = np.where(np.isnan(column), missing_left, column <= edge)
            assert np.array_equal(binned.goes_left(0, place, missing_left, rows), expected)
    if len(np.unique(column[~np.isnan(column)])) <= bins:
        present = column[~np.isnan(column)]
        assert set(edges) == set(np.unique(present)[:-1])


def test_many_values_are_cut_into_bins_of_about_as_many_rows() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    counts = np.bincount(bin_columns({"x": values}, 32).codes[:, 0])
    assert len(counts) == 32 and counts.max() - counts.min() <= 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**32), 2**32), st.integers(0, 2**32)), min_size=1))
def test_sums_of_bins_are_exact(cells: list[tuple[int, int, int]]) -> None:
    binned = bin_columns({"x": np.array([float(code) for code, _, _ in cells])}, 5)
    pairs = np.array([pair for _, *pair in cells], np.int64)
    sums = sum_bins(binned, pairs, np.arange(len(cells)))
    for which in (0, 1):
        expected = [0] * binned.counts[0]
        for code, pair in zip(binned.codes[:, 0], pairs.tolist(), strict=True):
            expected[code] += pair[which]
        assert sums[which].tolist() == expected


def test_the_smaller_of_two_siblings_is_added_up() -> None:
    assert built_here([7]) == [0]
    assert built_here([3, 2, 5, 5, 0, 9]) == [1, 2, 4]


def test_a_sample_keeps_the_largest_and_stands_for_all() -> None:
    rng = np.random.default_rng(0)
    gradients, hessians = rng.normal(size=2000), rng.random(2000)
    usable = rng.random(2000) < 0.9
    terms = terms_of(top_share=0.2, other_share=0.1)
    samples = [sample_rows(gradients, hessians, usable, terms, bytes([number]) * 32) for number in range(40)]
    rows = np.flatnonzero(usable)
    largest = rows[np.argsort(-np.abs(gradients[rows]))[: int(0.2 * len(rows))]]
    for sample in samples:
        assert set(largest) <= set(sample.rows) <= set(rows) and (np.diff(sample.rows) > 0).all()
        assert len(sample.rows) == pytest.approx(0.3 * len(rows), abs=2)
        kept = np.isin(sample.rows, largest)
        assert np.array_equal(sample.pairs[kept][:, 0], gradients[sample.rows[kept]])
    # Of the rest each stands for as many as there are to one that was drawn, so their sum is that of all in the mean.
    sums = [sample.pairs[:, 1].sum() for sample in samples]
    assert np.mean(sums) == pytest.approx(hessians[usable].sum(), rel=0.01)
    assert len({tuple(sample.rows) for sample in samples}) == 40
    again = sample_rows(gradients, hessians, usable, terms, bytes(32))
    assert np.array_equal(again.rows, samples[0].rows)


def test_a_side_that_is_too_light_is_no_split() -> None:
    # Hessians of 1, 1 and 8 in three bins.
    sums = np.array([[5, -5, 1], [1, 1, 8]], np.int64) << BITS
    totals = (1 << BITS, 10 << BITS)
    light = best_split(sums, [(3, False)], totals, terms_of(min_child_weight=0.5), BITS)
    assert light is not None and light.place == 0
    heavy = best_split(sums, [(3, False)], totals, terms_of(min_child_weight=2.0), BITS)
    assert heavy is not None and heavy.place == 1
    assert best_split(sums, [(3, False)], totals, terms_of(min_child_weight=3.0), BITS) is None
    assert best_split(sums, [(3, False)], totals, terms_of(min_gain=1e6), BITS) is None
    assert best_split(sums[:, :1], [(1, False)], totals, terms_of(), BITS) is None
    assert leaf_value(totals, terms_of(learning_rate=0.5, l2=0.0), BITS) == -0.05
    assert leaf_value((0, 0), terms_of(l2=0.0), BITS) == 0.0


def test_missing_values_go_where_they_gain_most() -> None:
    # Two bins and a third of missing values, which are like the first.
    sums = np.array([[9, -9, 9], [9, 9, 9]], np.int64) << BITS
    found = best_split(sums, [(3, True)], (9 << BITS, 27 << BITS), terms_of(), BITS)
    assert found is not None and found.missing_left and found.place == 0
    # One value, and missing ones that differ from it.
    alone = best_split(sums[:, [1, 2]], [(2, True)], (0, 18 << BITS), terms_of(), BITS)
    assert alone is not None and (alone.place, alone.missing_left) == (0, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"trees": 0},
        {"depth": 13},
        {"bins": 1},
        {"learning_rate": 0.0},
        {"l2": -1.0},
        {"min_gain": float("nan")},
        {"top_share": 0.9, "other_share": 0.2},
        {"top_share": 0.5},
        {"key_bits": 1024},
        {"trees": 3, "trees_alone": 3},
        {"feature_owners": ()},
        {"feature_owners": ("clinic",)},
        {"loss": "hinge"},
    ],
)
def test_terms_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    good = to_json(terms_of())
    assert TreeTerms.from_json(good) == terms_of()
    asked: dict[str, Any] = {"label_owner": "clinic", "feature_owners": ("registry",), **changes}
    with pytest.raises(ConfigurationError) as caught:
        TreeTerms(**asked)
    assert caught.value.reason == "trees_invalid"
    if changes.get("min_gain") is None:
        with pytest.raises(ConfigurationError) as caught:
            TreeTerms.from_json({**good, **changes})
        assert caught.value.reason == "trees_invalid"


def test_every_way_of_giving_rows_gives_the_same(tmp_path: Path) -> None:
    class Table:
        columns = ("a", "b")

        def __init__(self, given: dict[str, Any]) -> None:
            self._given = given

        def __getitem__(self, name: str) -> Any:
            class Column:
                def __init__(self, values: Any) -> None:
                    self._values = values

                def to_numpy(self) -> Any:
                    return self._values

            return Column(self._given[name])

        def to_numpy(self) -> Any:
            return None

    path = tmp_path / "rows.csv"
    path.write_text("a,note,b\n1,x,2.5\n,y,3\n-1,z,4\n", encoding="utf-8")
    arrays = {"a": np.array([1.0, np.nan, -1.0]), "b": np.array([2.5, 3, 4])}
    for source in (path, str(path), arrays, Table(arrays)):
        found = read_columns(source, ("b", "a"), "clinic")  # pyright: ignore[reportArgumentType]
        assert list(found) == ["b", "a"]
        assert all(np.array_equal(found[name], arrays[name], equal_nan=True) for name in arrays)
    with pytest.raises(DataError, match="clinic: rows.csv: column 'note' holds no number in row 1") as caught:
        read_columns(path, ("note",), "clinic")
    assert caught.value.reason == "data_cell" and "x" not in str(caught.value).split()
    with pytest.raises(DataError, match="'c' is missing"):
        read_columns(path, ("a", "c"), "clinic")


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ({"a": np.zeros((3, 2))}, "data_shape"),
        ({"a": np.array(["x", "y"])}, "data_dtype"),
        ({"a": np.array([1 + 2j])}, "data_dtype"),
        ({"a": np.array([0.0, -np.inf])}, "data_cell"),
        ({"a": np.ma.masked_array([1.0, 2.0], [True, False])}, "data_masked"),
        ({"a": np.zeros(0)}, "data_empty"),
        ({}, "data_missing"),
    ],
)
def test_rows_that_are_no_numbers_are_refused_by_column(rows: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError, match="^registry: ") as caught:
        read_columns(rows, ("a",), "registry")
    assert caught.value.reason == code
    assert code == "data_empty" or "'a'" in str(caught.value)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="registry: rows are"):
        read_columns(7, ("a",), "registry")  # pyright: ignore[reportArgumentType]
