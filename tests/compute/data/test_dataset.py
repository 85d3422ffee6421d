"""The chain of a data set: what a list comprehension would give."""

from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.compute.data import ArraySource, Column, Dataset
from coterie.draws import batch_order
from coterie.errors import ArgumentTypeError, ArgumentValueError, DataError
from tests.compute.data.pipelines import Jitter, double, is_even, not_third, numbered


def ids(dataset: Dataset) -> list[int]:
    return [int(row["id"]) for row in dataset]


# The rows' numbers in each pass.
Passes = Callable[[int], list[int]]
Law = tuple[Callable[[Dataset], Dataset], Callable[[Passes, int], list[int]]]
LAWS: dict[str, Law] = {
    "shuffle": (lambda d: d.shuffle(5), lambda rows, p: [rows(p)[i] for i in batch_order(len(rows(p)), 5, p)]),
    "take": (lambda d: d.take(7), lambda rows, p: rows(p)[:7]),
    "skip": (lambda d: d.skip(3), lambda rows, p: rows(p)[3:]),
    "repeat": (lambda d: d.repeat(2), lambda rows, p: rows(2 * p) + rows(2 * p + 1)),
    "shard": (lambda d: d.shard(3, 1), lambda rows, p: rows(p)[1::3]),
    "concat": (lambda d: d.concat(d), lambda rows, p: rows(p) + rows(p)),
    "zip": (
        lambda d: d.zip(d.rename(id="other").select("other")).select("id", "x"), lambda rows, p: rows(p)
    ),
    "split": (lambda d: d.split(0.5, 0.5)[1], lambda rows, p: rows(0)[round(len(rows(0)) * 0.5) :]),
    "map": (lambda d: d.map(double, "id"), lambda rows, p: [2 * row for row in rows(p)]),
    "select": (lambda d: d.select("x", "id"), lambda rows, p: rows(p)),
    "filter": (lambda d: d.filter(not_third, "id"), lambda rows, p: [row for row in rows(p) if row % 3 != 2]),
}  # fmt: skip
NEED_ALL_ROWS = ("zip", "split")
ORDERED_BY_POSITION = ("shuffle", "shard")


def after(law: Callable[[Passes, int], list[int]], rows: Passes) -> Passes:
    return lambda p: law(rows, p)


@pytest.mark.capability("F1", "F5")
@settings(max_examples=60)
@given(st.integers(0, 20), st.lists(st.sampled_from(sorted(LAWS)), max_size=5))
@example(0, ["concat", "zip"])
def test_a_chain_is_the_comprehension_that_it_says(rows: int, steps: list[str]) -> None:
    dataset, filtered = numbered(max(rows, 1)).take(rows), False
    expected: Passes = lambda p: list(range(rows))  # noqa: E731
    for step in steps:
        if filtered and step in (*NEED_ALL_ROWS, *ORDERED_BY_POSITION):
            continue
        method, law = LAWS[step]
        dataset, expected, filtered = method(dataset), after(law, expected), filtered or step == "filter"
    assert ids(dataset) == expected(0)
    assert [int(batch["id"][0]) for batch in dataset.batch(1).epochs(2)] == expected(0) + expected(1)


@pytest.mark.capability("F5")
def test_after_a_filter_shuffling_and_sharding_keep_exactly_the_rows_that_are_left() -> None:
    left = numbered(50).filter(is_even, "id")
    assert sorted(ids(left.shuffle(1))) == list(range(0, 50, 2)) != ids(left.shuffle(1))
    shards = [ids(left.shuffle(1).shard(3, i)) for i in range(3)]
    assert sorted(chain.from_iterable(shards)) == list(range(0, 50, 2))
    assert ids(left.take(5).shuffle(0)) != ids(left.take(5)) and sorted(ids(left.take(5).shuffle(0))) == [0, 2, 4, 6, 8]


@pytest.mark.capability("F5")
def test_algebra_of_the_chain() -> None:
    rows = numbered(23)
    assert ids(rows.take(9).concat(rows.skip(9))) == ids(rows)
    assert ids(rows.skip(2).skip(3)) == ids(rows.skip(5))
    assert ids(rows.filter(is_even, "id").filter(not_third, "id")) == ids(
        rows.filter(not_third, "id").filter(is_even, "id")
    )
    parts = rows.shuffle(3).split(0.6, 0.2, 0.2, seed=1)
    assert [len(part) for part in parts] == [14, 4, 5]
    assert sorted(chain.from_iterable(ids(part) for part in parts)) == list(range(23))
    assert ids(rows.repeat().take(50)) == [i % 23 for i in range(50)]
    assert ids(rows.take(3).concat(rows.repeat()).take(8)) == [0, 1, 2, 0, 1, 2, 3, 4]


@pytest.mark.capability("F5")
def test_the_parts_of_a_split_are_the_same_rows_in_every_pass() -> None:
    train, test = numbered(30).shuffle(2).split(0.7, 0.3)
    seen = [{int(i) for batch in part.shuffle(1).batch(1).epochs(3) for i in batch["id"]} for part in (train, test)]
    assert seen[0] | seen[1] == set(range(30)) and not seen[0] & seen[1]


@pytest.mark.capability("F1")
def test_passes_have_orders_and_numbers_of_their_own() -> None:
    rows = numbered(40).shuffle(0).map(Jitter(), "x")
    batches = list(rows.batch(40).epochs(2))
    assert batches[0]["id"].tolist() == batch_order(40, 0, 0).tolist()
    assert batches[1]["id"].tolist() == batch_order(40, 0, 1).tolist()
    jitter = [batch["x"][np.argsort(batch["id"]), 0] - np.arange(40) for batch in batches]
    assert len(np.unique(np.concatenate(jitter))) > 70  # two rows may agree after rounding to float32
    repeated = list(rows.repeat(2).batch(40))
    assert all((one["x"] == other["x"]).all() for one, other in zip(batches, repeated, strict=True))


@pytest.mark.capability("F3")
def test_columns_have_names_dtypes_and_shapes_and_can_be_had_one_by_one() -> None:
    dataset = Dataset.of(
        ArraySource({
            "image": np.zeros((3, 4, 4, 1), np.uint8),
            "label": np.arange(3, dtype=np.int32),
            "name": ["a", "b", "c"],
            "file": [b"\x00", b"", b"\xff\x00"],
        })
    )  # fmt: skip
    assert dataset.columns == {
        "image": Column("uint8", (4, 4, 1)),
        "label": Column("int32"),
        "name": Column("str"),
        "file": Column("bytes"),
    }
    assert [row["file"] for row in dataset.select("file")] == [b"\x00", b"", b"\xff\x00"]
    batch = dataset.select("name", "label").batch(2).first()
    assert batch["name"] == ["a", "b"] and batch["label"].dtype == np.int32 and list(batch) == [
        "name", "label", "sample_weight"
    ]  # fmt: skip
    renamed = dataset.rename(name="title").map(len, "file", outputs="bytes")
    assert list(renamed.columns) == ["title", "image", "label", "file", "bytes"]
    assert renamed.columns["bytes"] == Column("int64")
    assert [row["bytes"] for row in renamed] == [1, 0, 2]


@pytest.mark.capability("F1")
def test_a_step_takes_a_column_several_or_the_row() -> None:
    rows = numbered(3)
    assert [row["sum"] for row in rows.map(lambda i, x: i + x[1], ("id", "x"), outputs="sum")] == [0, 1.5, 3]
    both = rows.map(lambda i: (i, -i), "id", outputs=("id", "minus"))
    assert [(row["id"], row["minus"]) for row in both] == [(0, 0), (1, -1), (2, -2)]
    assert [dict(row) for row in rows.map(lambda row: {"only": int(row["id"])})] == [{"only": i} for i in range(3)]
    assert ids(rows.filter(lambda row: row["x"][1] > 0)) == [1, 2]


def test_lengths_are_told_where_they_are_known() -> None:
    rows = numbered(10)
    assert len(rows.repeat(3).skip(4).shard(4, 0)) == 7
    for unknown in (rows.repeat(), rows.filter(is_even, "id")):
        with pytest.raises(TypeError, match="not known beforehand"):
            len(unknown)
    assert list(rows.filter(is_even, "id").arrays()["id"]) == [0, 2, 4, 6, 8]
    assert rows.take(0).arrays() == {} and list(rows.take(0)) == []


REFUSED: dict[str, tuple[Callable[[Dataset], Any], type[Exception], str]] = {
    "shards": (lambda d: d.shard(3, 3), ArgumentValueError, "no shard 3 of 3"),
    "negative": (lambda d: d.take(-1), ArgumentValueError, "count must be a whole number of at least 0"),
    "truth for a number": (lambda d: d.skip(True), ArgumentValueError, "whole number"),
    "fractions": (lambda d: d.split(0.8, 0.3), ArgumentValueError, "together at most 1.0"),
    "too many rows": (lambda d: d.split(6, 6), ArgumentValueError, "together at most 10"),
    "endless shuffle": (lambda d: d.repeat().shuffle(), ArgumentValueError, "no end"),
    "behind no end": (lambda d: d.repeat().concat(d), ArgumentValueError, "no end"),
    "zip of lengths": (lambda d: d.zip(d.take(3).rename(id="a", x="b")), ArgumentValueError, "10 and 3 rows"),
    "zip of filtered": (lambda d: d.filter(is_even, "id").zip(d), ArgumentValueError, "Call zip first"),
    "split of filtered": (lambda d: d.filter(is_even, "id").split(0.5, 0.5), ArgumentValueError, "Call split first"),
    "zip of names": (lambda d: d.zip(d.select("x")), DataError, r"a column 'x'\. .* rename\(x='new'\)"),
    "zip of names made": (lambda d: list(d.zip(d.map(double, "id"))), DataError, "a column 'id'"),
    "no column": (lambda d: d.select("id", "y"), DataError, "no column 'y'"),
    "two of a name": (lambda d: d.rename(id="x"), DataError, "two columns 'x'"),
    "other columns": (lambda d: d.concat(d.select("id")), DataError, "different columns"),
    "no stage": (lambda d: Dataset(cast(Any, {"id": np.zeros(1)})), ArgumentTypeError, "takes a stage, got dict"),
    "a class": (lambda d: d.map(cast(Any, Jitter), "x"), ArgumentTypeError, "an instance"),
    "no operation": (lambda d: d.map([], "x"), ArgumentValueError, "no operation"),
    "a step's column": (lambda d: list(d.map(double, "y")), DataError, r"double failed at row 1: .*no column 'y'"),
    "no row": (lambda d: list(d.map(lambda row: 3)), DataError, "must give a row"),
    "two for three": (
        lambda d: list(d.map(lambda i: (i, i), "id", outputs=("a", "b", "c"))), DataError, "must give 3 values"
    ),
    "no truth": (lambda d: list(d.filter(lambda x: x, "x")), DataError, "must give True or False"),
    "other rows": (
        lambda d: d.map(lambda row: {f"c{row['id']}": 1}).arrays(), DataError, "different columns: c0 and c1"
    ),
    "reserved": (
        lambda d: d.rename(x="sample_weight").batch(2).first(), DataError, r"reserved .*\(sample_weight='weight'\)"
    ),
    "whole and not": (
        lambda d: d.concat(Dataset.of({"id": np.zeros(1), "x": np.zeros((1, 2), np.float32)})).batch(11).first(),
        DataError, "int64 and float64.*Cast",
    ),
    "ragged": (
        lambda d: d.map(lambda i: np.zeros(i), "id").batch(3).first(), DataError, r"float64\[0\] and float64\[1\]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_be_is_refused_by_name(case: str) -> None:
    act, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        act(numbered(10))


def test_an_error_names_the_row_of_the_source_whatever_the_order() -> None:
    def fail(value: int) -> int:
        return 1 // int(value - 6)

    with pytest.raises(DataError, match=r"fail failed at row 7: ZeroDivisionError") as caught:
        list(numbered(10).shuffle(3).filter(is_even, "id").map(fail, "id"))
    assert caught.value.reason == "data_step" and caught.value.details == {"row": 7}
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
