"""Shared memory: what goes through it comes out bit for bit, is never written over, and leaves nothing behind."""

import copy
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.compute.data import ArraySource, Dataset
from coterie.compute.data.batched import Batched
from coterie.compute.data.slots import Lender, Room, pack, unpack, unpack_copies
from coterie.compute.data.workers import Crew
from coterie.errors import DataError
from tests.compute.data.pipelines import (
    Unreadable,
    augmented,
    fail_at_seven,
    mirrored,
    numbered,
    same,
    sleep_long,
    widened,
)

NUMBERS = np.arange(4096.0)

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "float64": NUMBERS,
    "float32": NUMBERS.astype(np.float32).reshape(64, 8, 8),
    "float16": NUMBERS.astype(np.float16),
    "int8": NUMBERS.astype(np.int8),
    "uint64": NUMBERS.astype(np.uint64),
    "bool": NUMBERS % 3 == 0,
    "complex64": (NUMBERS + 1j).astype(np.complex64),
    "other order of bytes": NUMBERS.astype(">i4"),
    "columns first": np.asfortranarray(NUMBERS.reshape(64, 64)),
    "backwards": NUMBERS[::-1],
    "every third": NUMBERS.reshape(64, 64)[:, ::3],
    "one value for all": np.broadcast_to(np.float32(3), (999, 3)),
    "short": NUMBERS[:3],
    "of no axes": np.array(2.5),
    "of no rows": np.zeros((0, 3), np.float32),
    "of no width": np.zeros((5, 0), np.int16),
    "text": np.array(["a", "bcd"] * 600),
    "objects": np.array([None, "x", (1, 2)] * 600, object),
}  # fmt: skip


@pytest.mark.parametrize("unpacked", [unpack, unpack_copies])
@pytest.mark.parametrize("size", [1 << 20, 5_000, 0])
def test_a_value_comes_out_as_it_went_in(size: int, unpacked: Any) -> None:
    """Whether there is room for all of it, for some or for nothing."""
    slot = np.zeros(size, np.uint8)
    room = Room(slot)
    made = room.empty((32, 8), np.dtype(np.float32))
    made[...] = 7
    value: dict[str, Any] = {**ARRAYS, "made": made, "part": made[8:16], "rows": ["a", b"b", None, ARRAYS["float32"]]}
    found = unpacked(pack(value, room), slot)
    assert found.keys() == value.keys() and found["rows"][:3] == ["a", b"b", None]
    pairs = [(value[name], found[name]) for name in (*ARRAYS, "made", "part")]
    for there, here in [*pairs, (ARRAYS["float32"], found["rows"][3])]:
        assert (here.dtype, here.shape) == (there.dtype, there.shape)
        assert here.tolist() == there.tolist() and (here.flags.writeable or here is there)


def test_what_was_made_in_the_slot_is_not_copied() -> None:
    slot = np.zeros(1 << 16, np.uint8)
    room = Room(slot)
    made = room.empty((100, 100), np.dtype(np.int32))
    found = unpack(pack({"x": made}, room), slot)["x"]
    assert np.shares_memory(found, made) and np.shares_memory(found, slot)
    assert not np.shares_memory(unpack_copies(pack({"x": made}, room), slot)["x"], slot)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["u1", "f4", "f8", "i2"])), max_size=30))
def test_arrays_of_a_room_do_not_overlap_and_lie_as_their_dtype_wants(asked: list[tuple[int, str]]) -> None:
    room = Room(np.zeros(1 << 10, np.uint8))
    made = [room.empty((count, 2), np.dtype(name)) for count, name in asked]
    for number, array in enumerate(made):
        array[...] = number
    assert all((array == number).all() and array.flags.aligned for number, array in enumerate(made))


def test_a_slot_is_lent_again_when_the_last_view_of_it_is_gone() -> None:
    lender = Lender(1)
    slot = lender.lend()
    view = slot.bytes[8:24].view(np.float64)[:1].reshape(1, 1)
    assert slot.number == 0 and lender.lend().number is None
    del slot
    assert lender.lend().number is None
    del view
    assert lender.lend().number == 0


def mixed() -> Batched:
    """Columns of every kind: rows of a megabyte, of nothing, text, bytes, and batches that lie backwards in memory."""
    count = 22
    ids = np.arange(count)
    columns = {
        "id": ids,
        "half": ids.astype(np.float16).reshape(count, 1, 1) * np.ones((1, 40, 20), np.float16),
        "flag": ids % 3 == 0,
        "nothing": np.zeros((count, 0, 4), np.float32),
        "name": [f"row {i}" for i in ids],
        "file": [bytes([i]) * i for i in ids],
    }
    rows = Dataset.of(ArraySource(columns)).shuffle(5).map(widened, "id", outputs="wide")
    return rows.batch(4, per_batch_map=mirrored).epochs(2)


@pytest.mark.capability("F12")
@pytest.mark.parametrize("crew", ["threads", "processes"])
def test_columns_of_every_kind_are_what_the_caller_would_make(crew: Crew) -> None:
    # The bytes of one batch are changed, and all are kept: no other may show it.
    with mixed().workers(2, crew).stream() as stream:
        first = next(stream)
        kept = copy.deepcopy(first)
        first["wide"][...] = -1
        assert same([kept, *stream], mixed()) == 12
    assert (first["wide"] == -1).all()


@pytest.mark.capability("F12")
def test_rows_that_are_only_gathered_or_filtered_come_through_slots_too() -> None:
    rows = numbered(5_000).shuffle(1)
    assert same(rows.batch(64).workers(2, "processes"), rows.batch(64)) == 79
    chain = augmented(3_000)
    assert same(chain.batch(500).workers(2, "processes"), chain.batch(500)) == 4


@pytest.mark.capability("F13", "F12")
def test_going_back_while_processes_are_at_work_lets_none_of_them_write_over_what_comes() -> None:
    batches = list(mixed())
    with mixed().workers(2, "processes").stream() as stream:
        same(batches[:2], [next(stream), next(stream)])
        state = stream.state()
        for stop in (5, 3, 2):
            same(batches[2:stop], [next(stream) for _ in range(2, stop)])
            stream.restore(state)
        assert same(batches[2:], stream) == 10


def test_without_shared_memory_batches_go_through_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert Lender(3).slots is None
    assert same(mixed().workers(1, "processes"), mixed()) == 12
    # Who leaves early does not wait for a process that waits to be rid of megabytes.
    with mixed().workers(2, "processes").stream() as stream:
        next(stream)


def mappings() -> list[str]:
    """The shared memory of pipelines that this process still has."""
    gc.collect()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "coterie-data" in line]


@pytest.fixture
def _nothing_mapped() -> Iterator[None]:
    assert mappings() == []
    yield
    assert mappings() == []
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if "coterie-data" in _target(fd)]


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except FileNotFoundError:  # the one that lists the folder
        return ""


@pytest.mark.usefixtures("_nothing_mapped")
def test_batches_outlive_their_stream_and_memory_is_free_when_they_are_gone() -> None:
    with mixed().workers(2, "processes").stream() as stream:
        batch = next(stream)
        processes = multiprocessing.active_children()
    assert len(processes) == 2 and not any(process.is_alive() for process in processes)
    assert mappings()
    assert same([batch], [mixed().first()]) == 1


@pytest.mark.usefixtures("_nothing_mapped")
def test_a_stream_that_is_dropped_leaves_no_process() -> None:
    stream = numbered(64).map(sleep_long, "id").batch(1).workers(2, "processes").stream()
    next(stream)
    processes = multiprocessing.active_children()
    del stream
    gc.collect()
    assert_ended(processes)


@pytest.mark.usefixtures("_nothing_mapped")
def test_what_a_process_raised_says_where_or_is_told_in_words() -> None:
    rows = numbered(12).map(fail_at_seven, "id").batch(2).workers(1, "processes")
    with pytest.raises(DataError, match="fail_at_seven failed at row 8: ValueError: seven") as caught:
        list(rows)
    assert any("in fail_at_seven" in note for note in caught.value.__notes__)
    with pytest.raises(DataError, match="TwoWords: of two words") as caught:
        list(Dataset.of(Unreadable()).batch(2).workers(1, "processes"))
    assert any("in rows" in note for note in caught.value.__notes__)


def assert_ended(processes: list[BaseProcess]) -> None:
    """Wait until all of them have ended, not longer than is sensible."""
    assert processes
    until = time.monotonic() + 20
    while any(process.is_alive() for process in processes) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(process.is_alive() for process in processes)


@pytest.mark.usefixtures("_nothing_mapped")
def test_a_killed_worker_is_named_and_takes_the_others_with_it() -> None:
    stream = numbered(64).map(sleep_long, "id").batch(1).workers(2, "processes").stream()
    next(stream)
    processes = multiprocessing.active_children()
    assert len(processes) == 2 and processes[0].pid is not None
    os.kill(processes[0].pid, signal.SIGKILL)
    with pytest.raises(DataError, match="A worker process ended") as caught:
        list(stream)
    assert caught.value.reason == "data_worker_lost"
    assert_ended(processes)
