"""Columns of one notation: what is read fast is what the reader of any notation gives, bit for bit, with its errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.compute.data.sources.csv import lines, source
from coterie.compute.data.sources.csv.cells import cells
from coterie.compute.data.sources.csv.planning import choose, plan
from coterie.compute.data.sources.csv.regular import Regular, learn
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.errors import DataError

COMMA = ord(",")
# Cells that are no such number as their column has, and some that are although they look otherwise.
ODD = [
    "", "-", "+", ".", "-.", "+5", "--5", "5-", "1-2", "-1-", ".5", "-.5", "5.", "-5.", "5.0.", "1.2.3", ".1.2", "..5",
    "1e3", "1E-2", "a", "1a3", "é", " 5", "5 ", '"5"', '"', '""', "\r", "5\r", "\0", "nan", "inf", "-inf", "0x1", "1_0",
    "٣", "-0", "-0.0", "00012", "12345678", "123456789", "-12345678.25", "9007199254740993", "1.123456789", "1;2",
]  # fmt: skip


def _number(fraction: int, whole: int, seed: int) -> str:
    """A number of at most so many digits before the point."""
    rng = np.random.default_rng(seed)
    most: int = 10 ** int(rng.integers(1, whole + 1))
    step: int = 10**fraction
    digits = str(int(rng.integers(most)))
    after = f".{int(rng.integers(step)):0{fraction}d}" if fraction else ""
    return ("-" if rng.integers(2) else "") + digits + after


def _learned(text: str, **dtypes: str) -> Regular | None:
    header = tuple(f"c{k}" for k in range(text.partition("\n")[0].count(",") + 1))
    sample = cells(text.encode(), COMMA, len(header))
    table = plan(header, sample, choose("t.csv", header, None, dtypes), dtypes, ())
    return learn(table, sample, COMMA)


def _outcome(path: Path, block: int, **options: Any) -> object:
    """The columns as dtype and bytes, or what was wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines.blocks, "__defaults__", (block,))
        try:
            found = CsvSource(path, **options).load().arrays
        except DataError as error:
            return error.message, error.hint
    return {
        name: (values.dtype.name, values.shape, values.tobytes()) if isinstance(values, np.ndarray) else values
        for name, values in found.items()
    }


def _both(path: Path, block: int, **options: Any) -> tuple[object, object]:
    """What becomes of a file with and without the fast reader."""
    fast = _outcome(path, block, **options)
    with pytest.MonkeyPatch.context() as patch:
        never: Callable[..., None] = lambda *_: None  # noqa: E731
        patch.setattr(source, "learn", never)
        return fast, _outcome(path, block, **options)


COLUMNS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), min_size=1, max_size=6)
CHANGE = st.none() | st.tuples(st.integers(0, 10**6), st.sampled_from(ODD))


@settings(max_examples=300)
@given(
    COLUMNS,
    st.integers(1, 40),
    st.integers(0, 2**32),
    CHANGE,
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 400),
)
@example([(6, 1), (0, 1)], 30, 1, None, "\n", True, 400)
@example([(1, 1), (1, 1)], 5, 1, (3, ".1.2"), "\n", True, 400)
def test_both_readers_agree(
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
        [_number(fraction, whole, seed + row * 64 + k) for k, (fraction, whole) in enumerate(columns)]
        for row in range(rows)
    ]
    if change is not None:
        row, column = divmod(change[0] % (rows * len(columns)), len(columns))
        table[row][column] = change[1]
    header = ",".join(f"c{k}" for k in range(len(columns)))
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text(newline.join([header, *map(",".join, table)]) + newline * ended, newline="")
    fast, slow = _both(path, block)
    assert fast == slow


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("fraction", [0, 1, 2])
def test_one_odd_cell_is_never_read_fast_unless_it_is_such_a_number(odd: str, fraction: int) -> None:
    """In each place of a table, so that no neighbour's bytes can stand in for what it lacks."""
    rows = [[_number(fraction, 2, 7 * row + k) for k in range(3)] for row in range(4)]
    known = _learned("".join(",".join(row) + "\n" for row in rows))
    assert known is not None
    whole, _, after = odd.removeprefix("-").partition(".")
    regular = (whole + after).isdecimal() and odd.isascii() and len(whole) <= 2 * known.step and len(after) == fraction
    regular = regular and ("." in odd) == (fraction > 0)
    for row in range(4):
        for column in range(3):
            changed = [[*cells] for cells in rows]
            changed[row][column] = odd
            found = known.read("".join(",".join(cells) + "\n" for cells in changed).encode())
            assert (found is not None) == regular, (row, column)
            if found is not None:
                assert float(found[column][row]) == float(odd)


def test_what_is_missing_in_one_cell_and_too_much_in_another_is_not_taken_for_a_table() -> None:
    """Bytes are counted over the whole text, so one fault could make up for another."""
    known = _learned("1.5,2.5,3\n4.5,5.5,6\n")
    assert known is not None
    for text in (
        "1.5,25,3\n4..5,5.5,6\n",
        "15,2.5,3.\n4.5,5.5,6\n",
        "1.5,2.5\n3,4.5,5.5,6\n",
        "1.5,2.5,3,4.5\n5.5,6\n",
    ):
        assert known.read(text.encode()) is None, text
    for text in ("-1.5,2-5,3\n4.5,5.5,6\n", "1.5,2.5,3\r\n4.5,5.5,6\n", "1.5,2.5,\r3\n4.5,5.5,6\r\n", "1.5,2.5,3\n\n"):
        assert known.read(text.encode()) is None, text


@pytest.mark.parametrize("whole", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("fraction", range(8))
def test_every_notation_is_learned_and_read(fraction: int, whole: int) -> None:
    texts = [[_number(fraction, whole, 3 * row + k) for k in range(3)] for row in range(50)]
    text = "".join(",".join(row) + "\n" for row in texts)
    known = _learned(text)
    assert known is not None
    # What the sample shows decides how many digits are read at once, and so how many there may be.
    found = known.read(text.encode())
    assert found is not None
    for column, values in enumerate(found):
        expected = np.array([float(row[column]) for row in texts])
        assert np.asarray(values).dtype == (np.float64 if fraction else np.int64)
        np.testing.assert_array_equal(np.asarray(values, np.float64), expected + 0.0 if not fraction else expected)


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        ("1.5,a\n2.5,b\n", {}),
        ("1.5,1\n2.25,2\n", {}),
        ("1.5,1\n2.5,\n", {}),
        ("1.5, 1\n2.5, 2\n", {}),
        ("1.5,1e3\n2.5,1e4\n", {}),
        ("1.5,1\n2.5,2\n", {"c0": "int32"}),
        ("1.5,1\n2.5,2\n", {"c1": "str"}),
        ("0.123456789,1\n0.123456789,2\n", {}),
    ],
)
def test_what_is_not_regular_is_left_to_the_other_reader(text: str, dtypes: dict[str, str]) -> None:
    assert _learned(text, **dtypes) is None


@pytest.mark.parametrize(
    ("dtype", "text"),
    [("int8", "127\n128\n"), ("uint8", "5\n-1\n"), ("uint32", "1\n5000000000\n"), ("float16", "1.5\n70000.5\n")],
)
def test_a_number_beyond_its_dtype_is_refused_by_its_place(tmp_path: Path, dtype: str, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("c0\n" + "1\n" * ("." not in text) + text)
    fast, slow = _both(path, 1 << 12, dtypes={"c0": dtype})
    assert fast == slow
    assert isinstance(fast, tuple) and "row" in fast[0]


def test_columns_are_chosen_joined_and_converted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,d\n" + "".join(f"{k}.5,{k},-{k}.25,{2 * k}\n" for k in range(2000)))
    options: dict[str, Any] = {
        "select": {"x": ["d", "a", "c"], "y": "b", "z": ["c", "d"]},
        "dtypes": {"x": "float32", "y": "int16"},
    }
    for block in (64, 1000, 1 << 20):
        fast, slow = _both(path, block, **options)
        assert fast == slow
        assert isinstance(fast, dict)


def test_a_block_of_other_numbers_costs_one_more_reading_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first block that is not regular the others are not tried."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1.5,2\n" * 1000 + "1.25,2\n" * 1000)
    tried: list[bool] = []
    read = Regular.read

    def watched(self: Regular, text: bytes) -> Any:
        found = read(self, text)
        tried.append(found is not None)
        return found

    monkeypatch.setattr(Regular, "read", watched)
    monkeypatch.setattr(lines.blocks, "__defaults__", (600,))
    assert len(CsvSource(path, threads=1)) == 2000
    assert tried == [*[True] * 10, False]
