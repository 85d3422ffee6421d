"""Record files: what was written is read at any row, what was committed survives, and every damage is found."""

import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.compute.data.record import writer as writing
from coterie.compute.data.record.layout import ALIGNMENT, HEAD_BYTES, Kind, framed
from coterie.compute.data.record.source import RecordSource
from coterie.compute.data.record.writer import RecordWriter, write_records
from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.data.sources.arrays import ArraySource
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.compute.ir import NDArray
from coterie.errors import DataError, StorageError

COLUMNS = {
    "x": Column("float32", (3,)),
    "label": Column("int64"),
    "seen": Column("bool"),
    "name": Column("str"),
    "file": Column("bytes"),
    "image": Column("uint8", (None, None, 3)),
}


def _rows(first: int, stop: int) -> dict[str, Any]:
    """Rows of COLUMNS that tell their own number."""
    numbers = range(first, stop)
    return {
        "x": np.arange(3 * first, 3 * stop, dtype=np.float32).reshape(-1, 3),
        "label": np.array(numbers, np.int64),
        "seen": np.array([k % 3 == 0 for k in numbers], np.bool_),
        "name": [f"Nº {k}" * (k % 3) for k in numbers],
        "file": [bytes([k % 256]) * (k % 5) for k in numbers],
        "image": [np.full((k % 4, 1 + k % 3, 3), k % 256, np.uint8) for k in numbers],
    }


def _assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        if isinstance(values, np.ndarray):
            _assert_equal(found[name], cast(NDArray, values))
        elif isinstance(values[0], np.ndarray):
            for one, other in zip(found[name], cast(Sequence[NDArray], values), strict=True):
                _assert_equal(one, other)
        else:
            assert found[name] == values


def _assert_equal(one: NDArray, other: NDArray) -> None:
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def _chosen(rows: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
    return {
        name: values[np.array(indices)] if isinstance(values, np.ndarray) else [values[k] for k in indices]
        for name, values in rows.items()
    }


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BLOCK_BYTES", 256)


def _written(path: Path, *commits: tuple[int, int]) -> Path:
    with RecordWriter.create(path, COLUMNS) as writer:
        for first, stop in commits:
            writer.write(_rows(first, stop))
            writer.commit()
    return path


@pytest.mark.capability("F2")
@pytest.mark.usefixtures("small_blocks")
def test_rows_are_read_at_random(tmp_path: Path) -> None:
    source = RecordSource(_written(tmp_path / "a.rec", (0, 7), (7, 8), (8, 100)))
    assert len(source) == 100
    assert dict(source.columns) == COLUMNS
    _assert_same(source.rows(np.arange(100)), _rows(0, 100))
    for indices in ([99, 0, 50, 0], [42], list(np.random.default_rng(0).permutation(100))):
        _assert_same(source.rows(np.array(indices)), _chosen(_rows(0, 100), indices))
    assert {len(values) for values in source.rows(np.empty(0, np.int64)).values()} == {0}


@pytest.mark.usefixtures("small_blocks")
def test_rows_can_be_written_to_and_a_source_sent(tmp_path: Path) -> None:
    source = RecordSource(_written(tmp_path / "a.rec", (0, 9)))
    for values in source.rows(np.arange(9)).values():
        if isinstance(values, np.ndarray):
            values[...] = 0
    sent: RecordSource = pickle.loads(pickle.dumps(source))
    for reader in (source, sent):
        _assert_same(reader.rows(np.arange(9)), _rows(0, 9))


@pytest.mark.usefixtures("small_blocks")
def test_appending_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.rec", (0, 5))
    before = path.read_bytes()
    early = RecordSource(path)
    assert len(early) == 5
    with RecordWriter.append(path) as writer:
        writer.write(_rows(5, 40))
    assert path.read_bytes().startswith(before)
    _assert_same(early.rows(np.arange(5)), _rows(0, 5))
    _assert_same(RecordSource(path).rows(np.arange(40)), _rows(0, 40))


def test_no_rows_may_be_written_and_none_to_a_closed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    writer = RecordWriter.create(path, COLUMNS)
    writer.write({name: values[:0] for name, values in _rows(0, 1).items()})
    writer.write(_rows(0, 2))
    writer.close()
    writer.close()
    for use in (lambda: writer.write(_rows(2, 3)), writer.commit):
        with pytest.raises(StorageError, match=r"a\.rec is closed"):
            use()
    _assert_same(RecordSource(path).rows(np.arange(2)), _rows(0, 2))


class Slow(Source):
    """A source of two rows. When the second is asked for, all of it is written to the same file by somebody else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = ArraySource({"x": np.array([1, 2])})

    @property
    def columns(self) -> Mapping[str, Column]:
        """Those of the source."""
        return self.source.columns

    def __len__(self) -> int:
        return 2

    def rows(self, indices: NDArray) -> Rows:
        """The rows of the source."""
        if 1 in indices:
            write_records(self.path, self.source)
        return self.source.rows(indices)


def test_two_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    assert write_records(path, Slow(path), rows_at_once=1) == 2
    np.testing.assert_array_equal(RecordSource(path).rows(np.arange(2))["x"], [1, 2])
    assert [file.name for file in tmp_path.iterdir()] == ["a.rec"]


def test_a_file_of_no_rows_is_a_file(tmp_path: Path) -> None:
    source = RecordSource(_written(tmp_path / "a.rec"))
    assert len(source) == 0
    assert dict(source.columns) == COLUMNS


def test_blocks_have_about_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BLOCK_BYTES", 10_000)
    path = tmp_path / "a.rec"
    with RecordWriter.create(path, {"x": Column("float64", (10,))}) as writer:
        for part in np.split(np.arange(10_000.0).reshape(1000, 10), 50):
            writer.write({"x": part})
    # 125 rows of 80 bytes each make a block: 8 blocks, each with a head and filled up; a header; one index.
    assert path.stat().st_size < 80_000 + 8 * (HEAD_BYTES + ALIGNMENT) + 2000
    assert len(RecordSource(path)) == 1000


@settings(max_examples=40)
@given(st.data())
def test_any_columns_come_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    dtypes = st.sampled_from(["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64"])
    shapes = st.lists(st.integers(1, 3) | st.none(), max_size=3).map(tuple)
    column = st.builds(Column, dtypes, shapes) | st.sampled_from([Column("str"), Column("bytes")])
    columns = data.draw(st.dictionaries(st.text("abcé", min_size=1, max_size=4), column, min_size=1, max_size=4))
    count, block = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([1, 64, 1 << 20]))

    def value(column: Column) -> Any:
        if column.dtype in ("str", "bytes"):
            return data.draw(st.text(max_size=5) if column.dtype == "str" else st.binary(max_size=5))
        shape = tuple(data.draw(st.integers(0, 3)) if size is None else size for size in column.shape)
        return np.frombuffer(data.draw(st.binary(min_size=8, max_size=8)) * 27, np.uint8)[: int(np.prod(shape))].astype(
            column.dtype
        ).reshape(shape)  # fmt: skip

    listed = {name: [value(column) for _ in range(count)] for name, column in columns.items()}
    rows = {name: np.stack(values) if columns[name].fixed else values for name, values in listed.items()}
    path = tmp_path_factory.mktemp("rec") / "a.rec"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BLOCK_BYTES", block)
        with RecordWriter.create(path, columns) as writer:
            writer.write(_chosen(rows, range(count // 2)) if count // 2 else _chosen(rows, [0]))
            writer.write(_chosen(rows, range(count // 2, count)) if count // 2 else _chosen(rows, [0]))
    expected = rows if count // 2 else _chosen(rows, [0, 0])
    found = RecordSource(path)
    assert dict(found.columns) == columns
    _assert_same(found.rows(np.arange(len(found))), expected)


MISFITS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda rows: rows | {"x": rows["x"].astype(np.float64)}, "'x' holds float32 .* given an array of float64"),
    (lambda rows: rows | {"x": rows["x"][:, :2]}, r"given an array of float32 \(4, 2\)"),
    (lambda rows: rows | {"name": [1, 2, 3, 4]}, "'name' holds str .* given a int"),
    (lambda rows: rows | {"file": ["a"] * 4}, "'file' holds bytes .* given a str"),
    (lambda rows: rows | {"image": [np.zeros((2, 2, 4), np.uint8)] * 4}, "'image' holds uint8"),
    (lambda rows: rows | {"label": rows["label"][:2]}, "differ in length"),
    (lambda rows: rows | {"more": [1, 2, 3, 4]}, "'more' is not in the file"),
    (lambda rows: {"x": rows["x"]}, "'label' is missing"),
    (lambda rows: rows | {"name": ["", "a", "b", "\ud800"]}, r"'name' .* given '.ud800', of which UTF-8 has no bytes"),
    (lambda rows: rows | {"name": "abcd"}, "'name' holds str .* given a str"),
    (lambda rows: rows | {"file": 3}, "'file' holds bytes .* given a int"),
]


@pytest.mark.parametrize(("change", "message"), MISFITS)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = _written(tmp_path / "a.rec", (0, 4))
    before = path.read_bytes()
    with pytest.raises(DataError, match=message), RecordWriter.append(path) as writer:
        writer.write(_rows(4, 8))
        writer.write(change(_rows(0, 4)))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "column",
    [
        Column("complex64"),
        Column("object"),
        Column("str", (2,)),
        Column("int8", (0,)),
        Column("int8", (1,) * 9),
        Column("int8", (2**31 - 1,) * 3),
    ],
)
def test_columns_that_the_format_cannot_hold_are_refused(tmp_path: Path, column: Column) -> None:
    with pytest.raises(DataError, match="'c' cannot be in a record file"):
        RecordWriter.create(tmp_path / "a.rec", {"c": column})
    assert [*tmp_path.iterdir()] == []


def test_one_writer_at_a_time_and_no_file_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with RecordWriter.create(path, COLUMNS), pytest.raises(StorageError, match="another writer"):
        RecordWriter.append(path)
    with pytest.raises(DataError, match="such a file already") as caught:
        RecordWriter.create(path, COLUMNS)
    assert caught.value.reason == "record_exists"
    with pytest.raises(StorageError, match="cannot be written"):
        RecordWriter.append(tmp_path / "absent.rec")


KILLED = """
import sys, os, numpy as np
from coterie.compute.data.record import writer as writing
from coterie.compute.data.source import Column, Rows, Source
writing.BLOCK_BYTES = 4096
writer = writing.RecordWriter.append(sys.argv[1])
number = 100
while True:
    writer.write({"x": np.arange(number, number + 10)})
    number += 10
    if number % 500 == 0:
        writer.commit()
        print(number, flush=True)
"""


@pytest.mark.capability("F2")
def test_a_writer_that_is_killed_loses_nothing_that_it_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with RecordWriter.create(path, {"x": Column("int64")}) as writer:
        writer.write({"x": np.arange(100)})
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        committed = [int(process.stdout.readline()) for _ in range(3)][-1]
        process.send_signal(signal.SIGKILL)
    kept = RecordSource(path, torn="drop")
    assert len(kept) >= committed
    np.testing.assert_array_equal(kept.rows(np.arange(len(kept)))["x"], np.arange(len(kept)))
    with RecordWriter.append(path) as writer:
        mended = len(kept)
        writer.write({"x": np.arange(mended, mended + 7)})
    np.testing.assert_array_equal(RecordSource(path).rows(np.arange(mended + 7))["x"], np.arange(mended + 7))


@pytest.mark.usefixtures("small_blocks")
def test_a_file_cut_off_anywhere_keeps_its_complete_blocks(tmp_path: Path) -> None:
    whole = _written(tmp_path / "whole.rec", (0, 6), (6, 12)).read_bytes()
    complete: list[int] = []
    # Every few bytes, and around the beginnings of frames.
    frames = [at for at in range(0, len(whole), ALIGNMENT) if whole[at : at + 4] == b"cRec"]
    for size in sorted({*range(0, len(whole), 97), *(at + k for at in frames for k in (-1, 0, 1, 33) if at)}):
        path = tmp_path / "cut.rec"
        path.write_bytes(whole[:size])
        try:
            rows = len(RecordSource(path))
        except DataError as refused:
            assert refused.reason in ("record_torn", "record_damaged")
            if refused.reason == "record_damaged":
                # Not even the header is there.
                assert size < 500 and not complete
                continue
            kept = RecordSource(path, torn="drop")
            assert len(kept) == refused.details["rows"]
            rows = len(kept)
            with RecordWriter.append(path) as writer:
                writer.write(_rows(rows, rows + 1))
            _assert_same(RecordSource(path).rows(np.arange(rows + 1)), _rows(0, rows + 1))
        complete.append(rows)
    assert complete == sorted(complete)
    assert set(complete) >= {0, 6}


@pytest.mark.capability("F2")
@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    whole = _written(tmp_path / "whole.rec", (0, 2), (2, 3)).read_bytes()
    path = tmp_path / "damaged.rec"
    # The heads and trailers wholly; of the rest, which one checksum covers, every few bytes.
    heads = [at for at in range(0, len(whole), ALIGNMENT) if whole[at : at + 4] == b"cRec"]
    for at in sorted({*range(0, len(whole), 37), *(head + k for head in heads for k in range(-32 if head else 0, 32))}):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises(DataError, match="damaged.rec") as caught:
            source = RecordSource(path)
            source.rows(np.arange(len(source)))
        assert caught.value.reason in ("record_damaged", "record_torn")


@pytest.mark.usefixtures("small_blocks")
def test_damage_in_the_middle_is_not_mended_away(tmp_path: Path) -> None:
    """A writer that appends cuts off an incomplete end, but never blocks that can still be read."""
    path = _written(tmp_path / "a.rec", (0, 30))
    data = bytearray(path.read_bytes())[:-40]
    data[600] ^= 1
    path.write_bytes(data)
    refused: list[DataError] = []
    for _ in range(2):
        with pytest.raises(DataError, match="at byte") as caught:
            RecordWriter.append(path)
        # Kept, as a debugger keeps it: the file must be free all the same.
        refused.append(caught.value)
    assert path.read_bytes() == data


FOREIGN = [b"", b"no record file at all, but longer than a head", bytes(4096), b"cRec" + bytes(60)]


@pytest.mark.parametrize("data", FOREIGN)
def test_what_is_no_record_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    for use in (lambda: len(RecordSource(path)), lambda: RecordWriter.append(path)):
        with pytest.raises(DataError, match="no intact record file") as caught:
            use()
        assert caught.value.reason == "record_damaged"
    with pytest.raises(DataError, match="no such file"):
        len(RecordSource(tmp_path / "absent.rec"))


def _assert_read_or_refused(path: Path) -> None:
    """Whatever the bytes are: rows, or DataError."""
    try:
        source = RecordSource(path, torn="drop")
        count = min(len(source), 1000)
        for name, values in source.rows(np.arange(count)).items():
            assert len(values) == count, name
    except DataError:
        pass


def _resealed(data: bytearray) -> bytes:
    """The checksums made right again, as somebody would who means to deceive."""
    at = 0
    while at + HEAD_BYTES <= len(data):
        (length,) = struct.unpack_from("<Q", data, at + 12)
        payload = data[at + HEAD_BYTES : at + HEAD_BYTES + length]
        if length > len(data) or len(payload) < length:
            break
        if data[at + 4] == Kind.INDEX and length >= 32:
            struct.pack_into("<I", payload, length - 4, zlib.crc32(payload[-32:-4]))
            data[at + HEAD_BYTES : at + HEAD_BYTES + length] = payload
        struct.pack_into("<I", data, at + 20, zlib.crc32(payload))
        struct.pack_into("<I", data, at + 28, zlib.crc32(data[at : at + 28]))
        at += HEAD_BYTES + length
    return bytes(data)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BLOCK_BYTES", 256)
        return _written(tmp_path_factory.mktemp("rec") / "a.rec", (0, 3), (3, 9)).read_bytes()


@settings(max_examples=150)
@given(
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.binary(min_size=1, max_size=9)), max_size=4),
    cut=st.integers(0, 2**16),
    sealed=st.booleans(),
)
@example(edits=[(0, b"cRec")], cut=0, sealed=True)
def test_no_bytes_do_anything_but_read_or_raise(
    tmp_path_factory: pytest.TempPathFactory,
    sample: bytes,
    edits: list[tuple[int, bytes]],
    cut: int,
    sealed: bool,
) -> None:
    data = bytearray(sample)
    for at, piece in edits:
        at %= len(data)
        data[at : at + len(piece)] = piece[: len(data) - at]
    # Mostly whole: a file that was only cut off is another test's.
    data = data[: len(data) - cut % len(data)] if cut % 8 == 1 else data
    path = tmp_path_factory.getbasetemp() / "fuzzed.rec"
    path.write_bytes(_resealed(data) if sealed else bytes(data))
    _assert_read_or_refused(path)


HEADERS: list[Any] = [
    [], {}, {"columns": []}, {"columns": {}}, {"columns": [1]}, {"columns": [{"name": "a", "dtype": "O", "shape": []}]},
    {"columns": [{"name": "a", "dtype": "int8", "shape": [2**40]}]},
    {"columns": [{"name": "a", "dtype": "int8", "shape": [True]}]},
    {"columns": [{"name": "a", "dtype": "int8", "shape": "x"}]},
    {"columns": [{"name": "", "dtype": "int8", "shape": []}]},
    {"columns": [{"name": "a", "dtype": "int8", "shape": []}] * 2},
]  # fmt: skip


@pytest.mark.parametrize("text", [*map(json.dumps, HEADERS), "[" * 100_000, "\ud800", "{"], ids=lambda text: text[:40])
def test_a_header_that_deceives_is_refused(tmp_path: Path, text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    path = tmp_path / "a.rec"
    path.write_bytes(framed(Kind.HEADER, 0, raw + b" " * (-len(raw) % ALIGNMENT)))
    with pytest.raises(DataError, match="no intact record file"):
        len(RecordSource(path))


def test_a_later_version_is_named(tmp_path: Path) -> None:
    data = bytearray(_written(tmp_path / "a.rec", (0, 3)).read_bytes())
    data[5] = 2
    (tmp_path / "later.rec").write_bytes(_resealed(data))
    with pytest.raises(DataError, match="version 2 of the format. This release of coterie reads version 1"):
        len(RecordSource(tmp_path / "later.rec"))


def test_a_whole_source_becomes_a_file_or_none(tmp_path: Path) -> None:
    source = ArraySource({"x": np.arange(20_000.0), "name": [str(k) for k in range(20_000)]})
    assert write_records(tmp_path / "a.rec", source) == 20_000
    indices = np.array([19_999, 0, 4096, 4095])
    _assert_same(RecordSource(tmp_path / "a.rec").rows(indices), source.rows(indices))
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(DataError, match="row 2 has 1 cells"):
        write_records(tmp_path / "b.rec", CsvSource(tmp_path / "bad.csv"))
    assert sorted(os.listdir(tmp_path)) == ["a.rec", "bad.csv"]


def test_a_full_disk_is_an_error_of_storage() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    file = open("/dev/full", "wb", buffering=0)
    empty: NDArray = np.empty(0, np.int64)
    writer = RecordWriter(file, Path("/dev/full"), {"x": Column("int64")}, writing.EMPTY, (empty, empty))
    writer.write({"x": np.arange(3)})
    with pytest.raises(StorageError, match="No space left"):
        writer.close()
    assert file.closed
