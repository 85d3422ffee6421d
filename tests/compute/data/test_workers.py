"""One worker or many, threads or processes: the same rows in the same order."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from coterie.compute.data.processes import Processes
from coterie.compute.data.stage import Address, Memory
from coterie.compute.data.workers import Crew, Making, Piece
from coterie.errors import ArgumentValueError, DataError
from tests.compute.data import pipelines
from tests.compute.data.pipelines import Delay, augmented, numbered, same


@pytest.mark.capability("F9", "F6")
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_the_order_is_kept_whoever_is_late(workers: int) -> None:
    plain = augmented(96).batch(6).epochs(2)
    delayed = augmented(96).map(Delay(), "id").batch(6).epochs(2).workers(workers)
    assert same(plain, delayed) == same(delayed, delayed) == 22


@pytest.mark.capability("F9")
def test_pieces_that_end_in_the_reverse_order_come_in_order() -> None:
    """Eight workers, of which the first begun is the last to end."""
    gate = [threading.Event() for _ in range(8)]

    def wait_for_the_next(value: int) -> int:
        if value < 7:
            assert gate[value + 1].wait(20)
        gate[value].set()
        return value

    batches = numbered(8).map(wait_for_the_next, "id").batch(1).workers(8)
    assert [int(batch["id"][0]) for batch in batches] == list(range(8))


@pytest.mark.capability("F12", "F9", "F6")
def test_processes_give_what_threads_give() -> None:
    chain = augmented(60).map(pipelines.double, "id").batch(7).epochs(2)
    batches = chain.workers(2, "processes")
    # Python's own work: one interpreter each, which this one never sees.
    with batches.stream() as stream:
        assert same(chain, stream) == 12


@pytest.mark.capability("F12")
@pytest.mark.parametrize("crew", ["threads", "processes"])
def test_an_error_comes_where_its_batch_would_have_come_and_ends_the_stream(crew: Crew) -> None:
    stream = numbered(12).map(pipelines.fail_at_seven, "id").batch(2).workers(2, crew).stream()
    assert [next(stream)["id"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(DataError, match="fail_at_seven failed at row 8: ValueError: seven") as caught:
        next(stream)
    assert (caught.value.reason, caught.value.details) == ("data_step", {"row": 8})
    assert list(stream) == [] and stream.state()["step"] == 3


@pytest.mark.capability("F12", "F9")
def test_a_process_that_is_late_holds_up_its_own_pieces_and_no_others(tmp_path: Path) -> None:
    """Two processes, of which one is at the first row until a file is there: the other makes all behind it."""
    gate = tmp_path / "gate"
    batched = pipelines.Dataset.of(pipelines.ArraySource({"gate": [str(gate), *[""] * 6]})).map(
        pipelines.through, "gate"
    )
    rows = batched.batch(1)
    pieces = [Piece(rows.stage.locate(Address.span(0, n, n + 1), Memory()), {}, (0, n)) for n in range(7)]
    workers = Processes(Making(rows.stage, rows.batching), 2, 8)
    try:
        late = workers.submit(pieces[0])
        quick = [workers.submit(piece)() for piece in pieces[1:]]
        gate.touch()
        by = {int((made.batch or {})["gate"][0]) for made in quick}
        assert len(by) == 1 and int((late().batch or {})["gate"][0]) not in by
    finally:
        gate.touch()
        workers.close()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux knows tasks that do not interrupt others")
@pytest.mark.capability("F12")
def test_processes_do_not_interrupt_who_gives_them_work() -> None:
    policies = numbered(4).map(pipelines.policy, "id").batch(1).workers(1, "processes")
    assert {int(batch["id"][0]) for batch in policies} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.capability("F12")
def test_a_process_that_dies_is_named() -> None:
    stream = numbered(12).map(pipelines.die_at_seven, "id").batch(2).workers(1, "processes").stream()
    with pytest.raises(DataError, match="A worker process ended") as caught:
        list(stream)
    assert caught.value.reason == "data_worker_lost"


def test_what_cannot_be_sent_to_a_process_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArgumentValueError, match="cannot be sent to worker processes.*functions of a module"):
        next(iter(numbered(3).map(lambda i: i, "id").batch(1).workers(1, "processes")))


def test_a_stream_that_is_left_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with numbered(100).map(Delay(), "id").batch(1).workers(3).stream() as stream:
        next(stream)
        assert 1 <= len(set(threading.enumerate()) - before) <= 3
    assert set(threading.enumerate()) == before
    dropped = iter(numbered(100).map(Delay(), "id").batch(1).workers(3))
    next(dropped)
    del dropped
    until = time.monotonic() + 10
    while set(threading.enumerate()) != before and time.monotonic() < until:
        time.sleep(0.01)
    assert set(threading.enumerate()) == before


def test_a_worker_process_loads_nothing_but_numpy() -> None:
    program = (
        "import sys, coterie.compute.data.processes, coterie.compute.data.dataset, coterie.compute.data.transforms;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"coterie", "numpy"} <= loaded and not {"onnx", "onnxruntime", "PIL", "pydantic", "httpx"} & loaded


def test_rows_belong_to_whoever_gets_them() -> None:
    arrays = {"id": np.arange(6), "x": np.zeros((6, 2), np.float32)}
    dataset = pipelines.Dataset.of(pipelines.ArraySource(arrays))
    for batch in dataset.batch(2):
        batch["x"] += 1
        batch["id"][:] = 0
    for row in dataset.map(pipelines.write, "x"):
        assert row["x"].tolist() == [9, 9]
    assert arrays["id"].tolist() == list(range(6)) and not arrays["x"].any()
