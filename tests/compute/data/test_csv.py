"""CSV files: numbers are those of Python's float, cells those of its csv module, and what does not fit is named."""

import csv
import gzip
import io
import pickle
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.compute.data.sources.arrays import ArraySource
from coterie.compute.data.sources.csv import rows as reading
from coterie.compute.data.sources.csv import source as blocks
from coterie.compute.data.sources.csv.columns import Numeric
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.compute.ir import NDArray
from coterie.errors import DataError


def _file(folder: Path, text: str | bytes, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def _all(source: CsvSource) -> dict[str, NDArray | Sequence[object]]:
    return dict(source.rows(np.arange(len(source))))


def _read(cells: Sequence[str], *missing: str) -> NDArray:
    column = Numeric((0,), False, "float64", frozenset({"", *missing}))
    column.add([cells])
    return column.joined()


def _is_number(cell: str) -> bool:
    """Whether a cell is taken for a number, by itself and beside a missing one, which is read in another way."""
    found: set[bool] = set()
    for cells in ([cell], [cell, ""]):
        try:
            found.add(bool(_read(cells, "?").size) and cell.strip(" \t") not in ("", "?"))
        except reading.BadText:
            found.add(False)
    assert len(found) == 1, cell
    return found.pop()


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


NUMBERS = st.one_of(
    st.floats(allow_nan=False).map(repr),
    st.floats(allow_nan=False).map(lambda value: f"{value:.18e}"),
    st.floats(-1e6, 1e6).map(lambda value: f"{value:.4f}"),
    st.floats(-1e15, 1e15).map(lambda value: f"{value:+.9f}"),
    st.integers(-(2**70), 2**70).map(str),
    st.from_regex(r"[+-]?[0-9]{1,22}\.?[0-9]{0,3}", fullmatch=True),
    st.from_regex(r"[+-]?\.?[0-9]{1,23}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
# Midpoints between floats, powers of two, the ends of the range, and words that are full to the last character.
HARD = [
    "9007199254740993", "9007199254740992.5", "9007199254740993.0000001", "1e23", "8.5e22", "1.7976931348623157e308",
    "1.7976931348623159e308", "4.9e-324", "2.4703282292062327e-324", "2.2250738585072011e-308", "0.1", "-0", "-0.0",
    ".5", "5.", "+7", "123456.78", "12345678", "1234567.8", "0.84442185152504812", "1234567890123456.7",
    "9999999999999999999", "18446744073709551616", "000000000000000000000001", "00000000000000000000000001",
    "1000000000000000000000000", "-20000000000000000000000000.5",
    "72057594037927945", "4503599627370496.5", "4503599627370497.5", "inf", "-Infinity", "1e400", "1e-400", "0e999",
]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_a_hard_number_is_what_python_reads(text: str) -> None:
    values = _read([text, "0", text])
    assert _bits(values[0]) == _bits(values[2]) == _bits(float(text))


@settings(max_examples=60)
@given(st.lists(NUMBERS, min_size=1, max_size=30))
@example(["0.0", "18446744073709550592"])
def test_numbers_are_those_of_python(texts: list[str]) -> None:
    for cells in (texts, [*texts, ""]):
        values = _read(cells)[: len(texts)]
        assert [_bits(value) for value in values] == [_bits(float(text)) for text in texts]


@settings(max_examples=60)
@given(st.lists(st.text("0123456789.+-eE_ ,:x\x00é", max_size=30).map(lambda text: text.replace(",", "")), max_size=20))
@example(
    [
        "1_000",
        "--5",
        "1.2.3",
        ".",
        "-",
        "+",
        "",
        "e5",
        "1e",
        "1e+",
        "1e1.5",
        "1e5.",
        "1e.5",
        "./",
        "1./",
        "........",
        "0.........5",
        "٣",
        "0x10",
        "1 2",
        "nan",
        "infinit",
    ]
)
def test_what_is_no_number_is_never_taken_for_one(texts: list[str]) -> None:
    for text in texts:
        try:
            expected = None if "_" in text or not text.isascii() else float(text)
        except ValueError:
            expected = None
        assert _is_number(text) == (expected is not None), text
        if expected is not None:
            np.testing.assert_array_equal(_read([text]), [expected])


def test_digits_are_read_wherever_they_and_their_point_lie() -> None:
    digits = "9081726354091827364509"
    texts = [
        sign + digits[:count][:point] + "." * (point <= count) + digits[:count][point:]
        for sign in ("", "-", "+")
        for count in range(1, len(digits) + 1)
        for point in range(count + 2)
    ]
    for cells in (texts, [*texts, ""]):
        assert [_bits(value) for value in _read(cells)[: len(texts)]] == [_bits(float(text)) for text in texts]


@pytest.mark.parametrize("cell", ["12.5", "123456789012", "1234567.12345678901"])
def test_a_foreign_byte_is_found_wherever_it_is(cell: str) -> None:
    # float() strips what splits words; spaces and tabs around a number are no part of it.
    foreign = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in range(256) if chr(byte) not in " \t"]
    texts = [cell[:k] + character + cell[k + 1 :] for k in range(len(cell)) for character in foreign]
    for text in texts:
        odd = not text.isascii() or "_" in text or text != text.strip()
        try:
            expected = None if odd else float(text)
        except ValueError:
            expected = None
        assert _is_number(text) == (expected is not None), text
        assert expected is None or _bits(_read([text])[0]) == _bits(expected), text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_numbers_do_not_depend_on_where_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newline: str
) -> None:
    rng = np.random.default_rng(3)
    cells = [[f"{a:.3f}", repr(b), str(int(1e9 * c)), ""] for a, b, c in rng.standard_normal((12, 3)).tolist()]
    path = _file(tmp_path, newline.join(["a,b,c,d", *(",".join(row) for row in cells)]))
    for block in range(1, 120):
        monkeypatch.setattr(blocks, "BLOCK", block)
        found = np.stack([np.asarray(values) for values in _all(CsvSource(path)).values()], axis=1)
        np.testing.assert_array_equal(found, [[float(cell or "nan") for cell in row] for row in cells])


CELL = st.text(st.sampled_from('ab1.,"\n\r é'), max_size=6)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=30), st.integers(1, 40), st.sampled_from(["\n", "\r\n"])
)
def test_cells_are_those_of_the_csv_module(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], block: int, newline: str
) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=newline, quoting=csv.QUOTE_ALL).writerows([("a", "b", "c"), *rows])
    path = _file(tmp_path_factory.mktemp("csv"), written.getvalue())
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of a few bytes: their ends fall anywhere.
        patch.setattr(blocks, "BLOCK", block)
        found = _all(CsvSource(path, dtypes={"a": "str", "b": "str", "c": "str"}))
    assert [*zip(*found.values(), strict=True)] == rows


def test_columns_have_the_dtypes_of_what_they_hold(tmp_path: Path) -> None:
    path = _file(tmp_path, "n,x,gap,name,big,none\n1,2,3,Ann,9223372036854775807,\n-4,2.5,,Bö b,-9007199254740993,\n")
    source = CsvSource(path)
    assert {name: column.dtype for name, column in source.columns.items()} == {
        "n": "int64", "x": "float64", "gap": "float64", "name": "str", "big": "int64", "none": "float64",
    }  # fmt: skip
    found = _all(source)
    assert found["name"] == ["Ann", "Bö b"]
    np.testing.assert_array_equal(found["n"], [1, -4])
    np.testing.assert_array_equal(found["big"], [9223372036854775807, -9007199254740993])
    np.testing.assert_array_equal(found["gap"], [3, np.nan])


def test_one_word_for_what_is_missing_is_a_word_and_not_its_letters(tmp_path: Path) -> None:
    found = _all(CsvSource(_file(tmp_path, "a,b\nNA,A\n3,N\n"), missing="NA"))
    np.testing.assert_array_equal(found["a"], [np.nan, 3])
    assert found["b"] == ["A", "N"]


def test_columns_are_chosen_joined_and_converted(tmp_path: Path) -> None:
    path = _file(tmp_path, "a;b;label;note\n1;0.5;3;x\n?;1.5;4;y\n")
    source = CsvSource(path, {"x": ["b", "a"], "y": "label"}, {"x": "float32", "y": "uint8"}, ["?"], delimiter=";")
    assert [(name, column.dtype, column.shape) for name, column in source.columns.items()] == [
        ("x", "float32", (2,)), ("y", "uint8", ()),
    ]  # fmt: skip
    found = source.rows(np.array([1, 0, 1]))
    np.testing.assert_array_equal(found["x"], np.array([[1.5, np.nan], [0.5, 1], [1.5, np.nan]], np.float32))
    np.testing.assert_array_equal(found["y"], [4, 3, 4])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n", {}),
        ("a,b\n1,2\n3,4", {}),
        ("\n\n 1 ,\t2\n3,4\n", {"header": ("a", "b")}),
        ('"a","b"\n"1","2"\n"3",4\n', {}),
        ("a,b\n" + "\n" * 50 + "1,2\n\n\n3,4\n\n", {}),
        ("\ufeffa,b\r1,2\r\r3,4", {}),
        ('"a";"b"\n1;2\n"3";4\n', {}),
        ("a\tb\r\n1\t2\r\n3\t4\r\n", {}),
        ("a|b\n1|2\n3|4\n", {}),
        ("1;2\n3;4\n", {"header": ("a", "b")}),
        ('"a,in cm";b\n1;2\n3;4\n', {"select": {"a": "a,in cm", "b": "b"}}),
    ],
)
def test_forms_of_one_table(tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    for path in (_file(tmp_path, text), _file(tmp_path, gzip.compress(text.encode()), "people.csv.gz")):
        found = _all(CsvSource(path, **options))
        np.testing.assert_array_equal(found["a"], [1, 3])
        np.testing.assert_array_equal(found["b"], [2, 4])


TABLE = "age,chol,name\n" + "".join(f"{k},{k}.5,n{k}\n" for k in range(1, 100))
BAD: list[tuple[str | bytes, dict[str, Any], str, str]] = [
    (TABLE + "100,?,x\n", {}, r"row 100, column 'chol' is '\?', not a number", "data_cell"),
    (TABLE + "100,12_3,x\n", {}, r"row 100, column 'chol' is '12_3', not a number", "data_cell"),
    (TABLE + "x,1,x\n", {"select": {"v": ["chol", "age"]}}, "row 100, column 'age' is 'x', not a number", "data_cell"),
    (TABLE + ",1.5,x\n", {"dtypes": {"age": "int32"}}, "row 100, column 'age' is empty", "data_cell"),
    (TABLE + "1.5,1,x\n", {"dtypes": {"age": "int32"}}, "'1.5', not a whole number of int32", "data_cell"),
    (TABLE + "300,1,x\n", {"dtypes": {"age": "uint8"}}, "row 100, column 'age' is '300', not a whole", "data_cell"),
    (
        TABLE + "1,1e39,x\n",
        {"dtypes": {"chol": "float32"}},
        "'1e39', not a number in the range of float32",
        "data_cell",
    ),
    (TABLE.encode() + b"1,2,\xff\n", {}, "row 100, column 'name' is .*not UTF-8", "data_cell"),
    (TABLE + "1,2\n3,4,5\n", {}, "row 100 has 2 cells; the first line has 3. Quote", "data_shape"),
    (TABLE + "1,2,3,4\n", {}, "row 100 has 4 cells; the first line has 3", "data_shape"),
    (TABLE + "\n\n1,2", {}, "row 100 has 2 cells; the first line has 3. The file ends within this row", "data_shape"),
    (TABLE + '1,2,"never\n1,2,3\n', {}, "row 100 opens a quote that is never closed", "data_shape"),
    (TABLE + '1,2,a "quote", x\n', {}, "row 100 has 4 cells", "data_shape"),
    (TABLE + '1,2,5" pipe 3"\n', {}, "row 100 has a quote in the middle of a cell", "data_shape"),
    (TABLE + '1,2,"a"b"c"\n', {}, "row 100 has a quote in the middle of a cell", "data_shape"),
    (TABLE + '1,2,5" pipe\n' + 9 * '1,2,"x"\n', {}, "row 100 has a quote in the middle of a cell. Quote", "data_shape"),
    (TABLE + '\n\n1,2,"x\ny"\n\n1,2,"never\n\n1,2,3\n', {}, "row 101 opens a quote that is never", "data_shape"),
    (TABLE + '1,2\n1,2,"never\n', {}, "row 100 has 2 cells", "data_shape"),
    (TABLE + '1,"2,5",x\n', {}, "row 100, column 'chol' is '2,5', not a number. Write .* decimal point", "data_cell"),
    ("a;b\n1,5;2\n", {"dtypes": {"a": "float32"}}, "column 'a' is '1,5', not .* decimal point", "data_cell"),
    ("a;b\n1,5;2,5\n", {"delimiter": ","}, "row 1 has 3 cells; the first line has 1. .* by ';'", "data_shape"),
    ("a\tb\n1\t2\n", {"select": {"x": "a"}, "delimiter": ","}, "'a' is missing; .* by '.t'", "data_missing"),
    (TABLE, {"select": {"x": "weight"}}, "column 'weight' is missing; found age, chol, name", "data_missing"),
    (TABLE, {"select": {"x": ["size", "weight"]}}, "column 'size' and 1 more are missing", "data_missing"),
    ("age\n", {"select": {"x": "weight"}}, "column 'weight' is missing; found age", "data_missing"),
    (TABLE, {"select": {}}, "No column of people.csv is chosen", "data_missing"),
    (TABLE, {"select": {"x": []}}, "joins no column", "data_missing"),
    (TABLE, {"dtypes": {"weight": "str"}}, "column 'weight', which is not read", "data_missing"),
    (TABLE, {"dtypes": {"age": "complex64"}}, "'age' of people.csv cannot be read as 'complex64'", "data_dtype"),
    ("a,b\n1", {}, "row 1 has 1 cells; the first line has 2. The file ends within this row", "data_shape"),
    ("a,a\n1,2\n", {}, "names column 'a' twice", "data_surplus"),
    ("a,b\n\n\n", {}, "there are no rows", "data_empty"),
    ("a,b", {}, "there are no rows", "data_empty"),
    ("", {}, "there are no rows", "data_empty"),
    ('a,"b\n1,2\n', {}, "first line opens a quote", "data_shape"),
    ("a,b\n1,2\n".encode("utf-16"), {}, "UTF-16", "data_unreadable"),
    (b"\xff\xfd,b\n1,2\n", {}, "first line is not UTF-8", "data_unreadable"),
    (TABLE, {"delimiter": "1"}, "'1' cannot separate cells", "data_invalid"),
]


@pytest.mark.parametrize(("text", "options", "message", "code"), BAD)
@pytest.mark.parametrize("block", [1, 64, 1 << 18])
def test_what_does_not_fit_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | bytes,
    options: dict[str, Any],
    message: str,
    code: str,
    block: int,
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", block)
    with pytest.raises(DataError, match=message) as caught:
        len(CsvSource(_file(tmp_path, text), **options))
    assert caught.value.reason == code


def test_files_that_are_cut_off_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(TABLE.encode())
    for text in (packed[:-20], packed[:10], b"no gzip"):
        with pytest.raises(DataError, match=r"people\.csv\.gz cannot be read") as caught:
            len(CsvSource(_file(tmp_path, text, "people.csv.gz")))
        assert caught.value.reason == "data_unreadable"
    with pytest.raises(DataError, match="no such file"):
        len(CsvSource(tmp_path / "absent.csv"))
    monkeypatch.setattr(reading, "LONGEST_ROW", 1 << 12)
    for newline in ("", "\n"):
        with pytest.raises(DataError, match="row 100 is longer than 4096 bytes"):
            len(CsvSource(_file(tmp_path, TABLE + '1,2,"' + ("x" * 999 + newline) * 60)))


@settings(max_examples=60)
@given(st.binary(max_size=200), st.integers(1, 50))
def test_no_bytes_do_anything_but_read_or_raise(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, block: int
) -> None:
    path = _file(tmp_path_factory.mktemp("csv"), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        try:
            source = CsvSource(path)
            assert all(len(values) == len(source) for values in _all(source).values())
        except DataError:
            pass


def test_threads_share_one_reading_and_processes_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = CsvSource(_file(tmp_path, TABLE))
    opened: list[int] = []
    load = CsvSource.load

    def counted(self: CsvSource) -> ArraySource:
        opened.append(1)
        return load(self)

    def age(row: int) -> int:
        return int(source.rows(np.array([row]))["age"][0])

    monkeypatch.setattr(CsvSource, "load", counted)
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(age, range(99))] == [*range(1, 100)]
    assert len(opened) == 1
    sent = pickle.dumps(source)
    assert b"n57" not in sent
    assert pickle.loads(sent).rows(np.array([56]))["name"] == ["n57"]


def test_rows_are_copies(tmp_path: Path) -> None:
    source = CsvSource(_file(tmp_path, TABLE))
    first = source.rows(np.arange(3))["chol"]
    assert isinstance(first, np.ndarray)
    first[:] = 0
    np.testing.assert_array_equal(source.rows(np.arange(3))["chol"], [1.5, 2.5, 3.5])


def test_real_files_are_read_as_numpy_reads_them(data_dir: Path) -> None:
    for name in ("heart/cleveland.csv", "heart/va.csv", "breast_hetero_host.csv"):
        source = CsvSource(data_dir / name)
        expected = np.genfromtxt(data_dir / name, delimiter=",", skip_header=1)
        found = np.stack([np.asarray(values) for values in _all(source).values()], axis=1)
        np.testing.assert_array_equal(found, expected)
    adult = CsvSource(data_dir / "adult_test.csv.gz")
    with gzip.open(data_dir / "adult_test.csv.gz", "rt", newline="") as file:
        rows = [*csv.DictReader(file)]
    found = _all(adult)
    assert found["native-country"] == [row["native-country"] for row in rows]
    np.testing.assert_array_equal(found["age"], [int(row["age"]) for row in rows])
