"""What CsvSource reads is what Python's csv module and float read, to the cell; else the file is refused."""

import csv
import io
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.compute.data.sources.arrays import take
from coterie.compute.data.sources.csv import lines
from coterie.compute.data.sources.csv.cells import cells
from coterie.compute.data.sources.csv.planning import choose, plan
from coterie.compute.data.sources.csv.regular import learn
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.errors import DataError

HEADER = ("a", "b")
# What one cell lacks another may have too much of, so digits, signs, points and ends of lines come in any order.
TEXT = st.text(st.sampled_from("0123456789.-,;\t\n\r \x0b\x0c?"), max_size=30)
ROWS = st.lists(st.tuples(st.integers(-99, 99), st.integers(0, 99)), max_size=12)


def _file(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_bytes(text.encode())
    return path


def _number(cell: str, missing: Sequence[str] = ()) -> float:
    text = cell.strip(" \t")
    return float("nan") if text in ("", *missing) else float(text)


def _expected(text: str, delimiter: str) -> list[list[str]]:
    read = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    return [row for row in read if row]


@settings(max_examples=400)
@given(
    ROWS,
    st.lists(st.tuples(st.integers(0, 200), TEXT), max_size=3),
    st.sampled_from([",", ";", "\t", " ", "?"]),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 200),
)
@example([(1, 2)], [(3, "\r")], ",", "\n", 200)
@example([(1, 2), (1, 2)], [(3, "\x0c")], ",", "\n", 200)
@example([], [(0, "\t\n1\t2")], "\t", "\n", 200)
@example([], [(0, "\t\n \n1\t2")], "\t", "\n", 200)
def test_text_of_any_kind_is_read_as_the_csv_module_reads_it_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, int]],
    changes: list[tuple[int, str]],
    delimiter: str,
    newline: str,
    block: int,
) -> None:
    text = "".join(f"{a}.{b:02}{delimiter}{b}{newline}" for a, b in rows)
    for place, change in changes:
        text = text[:place] + change + text[place:]
    path = _file(tmp_path_factory.mktemp("csv"), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines.blocks, "__defaults__", (block,))
        try:
            found = CsvSource(path, header=HEADER, delimiter=delimiter).load().arrays
        except DataError:
            return
    columns = [*zip(*_expected(text, delimiter), strict=True)]
    assert len(columns) == len(HEADER)
    for values, texts in zip(found.values(), columns, strict=True):
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(values, [_number(cell) for cell in texts])
        else:
            assert values == [*texts]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n1,\r\r\n", "row 2 has a carriage return in its middle"),
        ("a,b\n1,2\n3,\r4\n", "row 2 has a carriage return in its middle"),
        ("a,b\n1,\r\r\n3,4\n", "row 1 has a carriage return in its middle"),
        ("a,b\r\n1,2\r\n\r\n3,x\ry\r\n", "row 2 has a carriage return in its middle"),
        ('a,b\n1,"x\ry"\n3,x\ry\n', "row 2 has a carriage return in its middle"),
        ("a\r1\n2\n", "the first line has a carriage return in its middle"),
        ("a,b\n1,2\n3,\x0c\n", r"row 2, column 'b' is '\\x0c', not a number"),
        ("a,b\n1,2\n3,\x0b \n", r"row 2, column 'b' is '\\x0b ', not a number"),
    ],
)
def test_odd_ends_of_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        len(CsvSource(_file(tmp_path, text)))


def test_carriage_returns_in_quotes_are_text(tmp_path: Path) -> None:
    for newline in ("\n", "\r\n", "\r"):
        text = newline.join(["a,b", '1,"x\ry\r"', "", '2,"\r"', "3,z"])
        assert CsvSource(_file(tmp_path, text)).load().arrays["b"] == ["x\ry\r", "\r", "z"]


@pytest.mark.parametrize("text", ["a\tb\n\t\n1\t2", "a\tb\n\t\n1\t2\n", "a\tb\n \t \n1\t2"])
def test_rows_of_empty_cells_are_rows_even_before_all_others(tmp_path: Path, text: str) -> None:
    found = CsvSource(_file(tmp_path, text), delimiter="\t").load().arrays
    np.testing.assert_array_equal(found["a"], [np.nan, 1])
    np.testing.assert_array_equal(found["b"], [np.nan, 2])


@pytest.mark.parametrize("missing", [("-999",), ("-9.5", "?"), ("0", "nan"), ("12",)])
@pytest.mark.parametrize("block", [20, 1 << 18])
def test_a_number_that_stands_for_no_number_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], block: int
) -> None:
    monkeypatch.setattr(lines.blocks, "__defaults__", (block,))
    texts = [["-999", "-9.5"], ["3", "0.5"], [" 0 ", '"-9.5"'], ["12", "1.2"], ["-9990", "-9.50"], ["0", "12"]]
    path = _file(tmp_path, "a,b\n" + "".join(",".join(row) + "\n" for row in texts))
    found = CsvSource(path, {"x": ["a", "b"], "a": "a"}, missing=missing).load().arrays
    expected = [[_number(cell.strip('"'), missing) for cell in row] for row in texts]
    np.testing.assert_array_equal(found["x"], expected)
    np.testing.assert_array_equal(found["a"], np.array(expected)[:, 0])


def test_a_number_that_stands_for_no_number_is_no_whole_number_and_is_not_read_fast(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b\n1,1.5\n-999,2.5\n")
    options: dict[str, Any] = {"missing": ["-999"]}
    np.testing.assert_array_equal(np.asarray(CsvSource(path, **options).load().arrays["a"]), [1, np.nan])
    with pytest.raises(DataError, match="row 2, column 'a' is '-999', not a whole number of int32"):
        CsvSource(path, dtypes={"a": "int32"}, **options).load()


@pytest.mark.parametrize("delimiter", ["\t", " ", ";"])
def test_columns_of_one_notation_are_read_fast_whatever_separates_them(delimiter: str) -> None:
    text = f"1.5{delimiter}2\n-2.5{delimiter}3\n"
    sample = cells(text.encode(), ord(delimiter), len(HEADER))
    table = plan(HEADER, sample, choose("t.csv", HEADER, None, {}), {}, ())
    known = learn(table, sample, ord(delimiter))
    assert known is not None
    found = known.read(text.encode())
    assert found is not None
    assert [np.asarray(column).tolist() for column in found] == [[1.5, -2.5], [2, 3]]


@pytest.mark.parametrize("delimiter", ["\t", " "])
def test_blanks_in_quotes_are_trimmed_where_blanks_separate(tmp_path: Path, delimiter: str) -> None:
    path = _file(tmp_path, f'a{delimiter}b\n" 5\t"{delimiter}"\t"\n')
    found = CsvSource(path, delimiter=delimiter, dtypes={"a": "int32"}).load().arrays
    np.testing.assert_array_equal(found["a"], [5])
    np.testing.assert_array_equal(found["b"], [np.nan])


@pytest.mark.parametrize("kind", ["together", "apart", "beside words", "read only", "other order"])
def test_rows_are_taken_without_a_copy_of_all(kind: str) -> None:
    values = np.arange(1 << 17, dtype=np.float64).reshape(-1, 8)
    if kind == "apart":
        values = values[::2]
    elif kind == "beside words":
        values = np.concatenate([np.zeros(3, np.uint8), values.ravel().view(np.uint8)])[3:].view(np.float64)
        values = values.reshape(-1, 8)
        assert not values.flags.aligned
    elif kind == "read only":
        values.flags.writeable = False
    elif kind == "other order":
        values = values.astype(values.dtype.newbyteorder())
    expected = values[np.array([5, -1, 5])]
    tracemalloc.start()
    try:
        taken = np.asarray(take(values, np.array([5, -1, 5])))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(taken, expected)
    assert most < values.nbytes // 4
