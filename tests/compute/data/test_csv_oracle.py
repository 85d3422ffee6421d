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
from coterie.compute.data.sources.csv import source as blocks
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.errors import DataError

HEADER = ("a", "b")
# What one cell lacks another may have too much of, so digits, signs, points and ends of lines come in any order.
TEXT = st.text(st.sampled_from("0123456789.-,;\t\n\r \x0b\x0c?"), max_size=30)
# Cells that are no number as others of their column are, and some that are although they look otherwise.
ODD = [
    "", "-", "+", ".", "-.", "+5", "--5", "5-", "1-2", "-1-", ".5", "-.5", "5.", "-5.", "5.0.", "1.2.3", ".1.2", "..5",
    "1e3", "1E-2", "a", "1a3", "é", " 5", "5 ", '"5"', '"', '""', "\r", "5\r", "\0", "nan", "inf", "-inf", "0x1", "1_0",
    "٣", "-0", "-0.0", "00012", "12345678", "123456789", "-12345678.25", "9007199254740993", "1.123456789", "1;2",
]  # fmt: skip


ROWS = st.lists(st.tuples(st.integers(-99, 99), st.integers(0, 99)), max_size=12)


def _file(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_bytes(text.encode())
    return path


def _number(cell: str, missing: Sequence[str] = ()) -> float:
    text = cell.strip(" \t")
    return float("nan") if text in ("", *missing) else float(text)


def _written(fraction: int, whole: int, seed: int) -> str:
    """A number of at most so many digits before the point."""
    rng = np.random.default_rng(seed)
    most: int = 10 ** int(rng.integers(1, whole + 1))
    step: int = 10**fraction
    digits = str(int(rng.integers(most)))
    after = f".{int(rng.integers(step)):0{fraction}d}" if fraction else ""
    return ("-" if rng.integers(2) else "") + digits + after


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
        patch.setattr(blocks, "BLOCK", block)
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
        ("a\r\r\n1\r\n", "the first line has a carriage return in its middle"),
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
    monkeypatch.setattr(blocks, "BLOCK", block)
    texts = [["-999", "-9.5"], ["3", "0.5"], [" 0 ", '"-9.5"'], ["12", "1.2"], ["-9990", "-9.50"], ["0", "12"]]
    path = _file(tmp_path, "a,b\n" + "".join(",".join(row) + "\n" for row in texts))
    found = CsvSource(path, {"x": ["a", "b"], "a": "a"}, missing=missing).load().arrays
    expected = [[_number(cell.strip('"'), missing) for cell in row] for row in texts]
    np.testing.assert_array_equal(found["x"], expected)
    np.testing.assert_array_equal(found["a"], np.array(expected)[:, 0])


def test_a_number_that_stands_for_no_number_is_no_whole_number(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b\n1,1.5\n-999,2.5\n")
    options: dict[str, Any] = {"missing": ["-999"]}
    np.testing.assert_array_equal(np.asarray(CsvSource(path, **options).load().arrays["a"]), [1, np.nan])
    with pytest.raises(DataError, match="row 2, column 'a' is '-999', not a whole number of int32"):
        CsvSource(path, dtypes={"a": "int32"}, **options).load()


@pytest.mark.parametrize("delimiter", ["\t", " "])
def test_blanks_in_quotes_are_trimmed_where_blanks_separate(tmp_path: Path, delimiter: str) -> None:
    path = _file(tmp_path, f'a{delimiter}b\n" 5\t"{delimiter}"\t"\n')
    found = CsvSource(path, delimiter=delimiter, dtypes={"a": "int32"}).load().arrays
    np.testing.assert_array_equal(found["a"], [5])
    np.testing.assert_array_equal(found["b"], [np.nan])


COLUMNS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), min_size=1, max_size=6)


def _outcome(path: Path, block: int, **options: Any) -> object:
    """The columns, or what was wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        try:
            found = CsvSource(path, **options).load().arrays
        except DataError as error:
            return error.message, error.hint
    return {
        name: (values.dtype.name, values.shape, repr(values.tolist())) if isinstance(values, np.ndarray) else values
        for name, values in found.items()
    }


@settings(max_examples=100)
@given(
    COLUMNS,
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.none() | st.tuples(st.integers(0, 10**6), st.sampled_from(ODD)),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 400),
)
@example([(6, 1), (0, 1)], 30, 1, None, "\n", True, 1)
@example([(1, 1), (1, 1)], 5, 1, (3, ".1.2"), "\n", True, 1)
@example([(0, 1), (0, 1)], 10, 0, (0, ""), "\n", False, 1)
def test_what_is_read_does_not_depend_on_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    columns: list[tuple[int, int]],
    rows: int,
    seed: int,
    change: tuple[int, str] | None,
    newline: str,
    ended: bool,
    block: int,
) -> None:
    table = [
        [_written(fraction, whole, seed + row * 64 + k) for k, (fraction, whole) in enumerate(columns)]
        for row in range(rows)
    ]
    if change is not None:
        row, column = divmod(change[0] % (rows * len(columns)), len(columns))
        table[row][column] = change[1]
    header = ",".join(f"c{k}" for k in range(len(columns)))
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text(newline.join([header, *map(",".join, table)]) + newline * ended, newline="")
    assert _outcome(path, block) == _outcome(path, 1 << 20)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("fraction", [0, 1, 2])
def test_one_odd_cell_is_read_as_python_reads_it_or_refused(tmp_path: Path, odd: str, fraction: int) -> None:
    """In each place of a table, so that no neighbour can stand in for what it lacks."""
    rows = [[_written(fraction, 2, 7 * row + k) for k in range(3)] for row in range(4)]
    for row in range(1, 4):
        for column in range(3):
            changed = [[*cells] for cells in rows]
            changed[row][column] = odd
            path = _file(tmp_path, "a,b,c\n" + "".join(",".join(cells) + "\n" for cells in changed))
            try:
                found = CsvSource(path).load().arrays
            except DataError:
                if "\r" in odd:
                    assert column < 2  # before a newline it is no part of its cell
                    continue
                cell = odd if odd.count('"') == 1 else next(iter(_expected(odd, ",")), [""])[0]
                with pytest.raises(ValueError):
                    _number(cell if cell.isascii() and "_" not in cell else "x")
                continue
            expected = [[_number(cell) for cell in cells] for cells in _expected(path.read_text(), ",")[1:]]
            np.testing.assert_array_equal(np.stack([np.asarray(v) for v in found.values()], axis=1), expected)


@pytest.mark.parametrize("whole", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("fraction", range(8))
def test_every_notation_is_read(tmp_path: Path, fraction: int, whole: int) -> None:
    texts = [[_written(fraction, whole, 3 * row + k) for k in range(3)] for row in range(50)]
    found = CsvSource(_file(tmp_path, "a,b,c\n" + "".join(",".join(row) + "\n" for row in texts))).load().arrays
    for column, values in enumerate(found.values()):
        assert np.asarray(values).dtype == (np.float64 if fraction else np.int64)
        np.testing.assert_array_equal(np.asarray(values, np.float64), [float(row[column]) for row in texts])


@pytest.mark.parametrize(
    ("dtype", "text"),
    [("int8", "127\n128\n"), ("uint8", "5\n-1\n"), ("uint32", "1\n5000000000\n"), ("float16", "1.5\n70000.5\n")],
)
def test_a_number_beyond_its_dtype_is_refused_by_its_place(tmp_path: Path, dtype: str, text: str) -> None:
    path = _file(tmp_path, "c0\n" + "1\n" * ("." not in text) + text)
    row = 2 + ("." not in text)
    with pytest.raises(DataError, match=f"row {row}, column 'c0' is '.*', not a .*number .*{dtype}"):
        CsvSource(path, dtypes={"c0": dtype}).load()


def test_columns_are_chosen_joined_and_converted_whatever_the_blocks(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b,c,d\n" + "".join(f"{k}.5,{k},-{k}.25,{2 * k}\n" for k in range(2000)))
    options: dict[str, Any] = {
        "select": {"x": ["d", "a", "c"], "y": "b", "z": ["c", "d"]},
        "dtypes": {"x": "float32", "y": "int16"},
    }
    found = CsvSource(path, **options).load().arrays
    k = np.arange(2000)
    np.testing.assert_array_equal(np.asarray(found["x"]), np.stack([2 * k, k + 0.5, -(k + 0.25)], 1).astype("float32"))
    np.testing.assert_array_equal(np.asarray(found["z"]), np.stack([-(k + 0.25), 2 * k], 1))
    assert np.asarray(found["y"]).dtype == np.int16 and np.asarray(found["y"]).tolist() == k.tolist()
    assert len({repr(_outcome(path, block, **options)) for block in (64, 1000, 1 << 20)}) == 1


def test_the_first_cell_that_does_not_fit_is_named_whichever_column_is_read_first(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b,c\n1,2,3\n1,x,3\ny,2,3\n1,2,z,4\n")
    for select in ({"v": ["a", "b"]}, {"a": "a", "b": "b"}, {"b": "b", "a": "a"}):
        with pytest.raises(DataError, match="row 2, column 'b' is 'x', not a number"):
            CsvSource(path, select, dtypes=dict.fromkeys(select, "float64")).load()


def test_a_long_file_is_never_held_as_texts_at_once(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b\n" + "1.25,word\n" * 200_000)
    tracemalloc.start()
    try:
        found = CsvSource(path).load().arrays
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    held = np.asarray(found["a"]).nbytes + 8 * 200_000
    assert most < 2 * held + (40 << 20)


def test_a_cell_beyond_the_limit_of_the_csv_module_is_named(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b\n1,2\n3," + "x" * (csv.field_size_limit() + 1) + "\n")
    with pytest.raises(DataError, match="row 2 has a cell of more characters than csv.field_size_limit allows"):
        CsvSource(path).load()


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
