"""A stream goes on where it stood, bit for bit, in another process and after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute.data import Dataset
from coterie.compute.data.batched import Batched
from coterie.errors import InputError
from tests.compute.data.killed import digest, pipeline
from tests.compute.data.pipelines import Jitter, augmented, is_even, numbered, same

ROOT = Path(__file__).resolve().parents[3]

CHAINS: dict[str, Callable[[], Batched]] = {
    "plain": lambda: numbered(23).shuffle(1).batch(4).epochs(3),
    "dropped": lambda: augmented(23).batch(4, drop_remainder=True).epochs(3),
    "augmented": lambda: augmented(23).batch(4).epochs(3),
    "repeated": lambda: augmented(23).repeat().take(50).batch(4),
    "counted": lambda: numbered(40).filter(is_even, "id").skip(3).take(9).map(Jitter(), "x").batch(2).epochs(2),
    "joined": lambda: augmented(9).concat(numbered(7).map(Jitter(), "x")).shuffle(2).batch(3).epochs(2),
    "sparse": lambda: numbered(300).filter(lambda i: i > 290, "id").batch(4).epochs(2),
}


@pytest.mark.capability("F13")
@pytest.mark.parametrize("name", sorted(CHAINS))
@settings(max_examples=12)
@given(data=st.data())
def test_any_step_can_be_gone_on_from(name: str, data: st.DataObject) -> None:
    batches = CHAINS[name]()
    whole = list(batches)
    stop = data.draw(st.integers(0, len(whole)))
    stream = batches.workers(data.draw(st.sampled_from([0, 3]))).stream()
    same(whole[:stop], [next(stream) for _ in range(stop)])
    state = json.loads(json.dumps(stream.state()))
    stream.close()
    resumed = CHAINS[name]().workers(data.draw(st.sampled_from([0, 3]))).stream()
    resumed.restore(state)
    assert same(whole[stop:], resumed) == len(whole) - stop
    assert resumed.state() | {"epoch": 0} == stream_end(batches, len(whole)) | {"epoch": 0}


def stream_end(batches: Batched, steps: int) -> dict[str, Any]:
    """The state behind the last batch."""
    return batches.stream().state() | {"step": steps}


@pytest.mark.capability("F13", "F12")
def test_a_killed_process_is_gone_on_from_at_its_last_step(tmp_path: Path) -> None:
    told = tmp_path / "batches.jsonl"
    command = [sys.executable, "-m", "tests.compute.data.killed", str(told)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        deadline = time.monotonic() + 60
        while (not told.exists() or told.read_text().count("\n") < 6) and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    lines = [json.loads(line) for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]
    expected = [digest(batch) for batch in pipeline()]
    done = len(lines)
    assert 6 <= done < len(expected), "the process was to be killed in the middle"
    assert [line["digest"] for line in lines] == expected[:done]
    resumed = pipeline().workers(2).stream()
    resumed.restore(lines[-1]["state"])
    assert [digest(batch) for batch in resumed] == expected[done:]
    # The workers that nobody could stop any more have ended themselves.
    while any(_alive(pid) for pid in lines[-1]["workers"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lines[-1]["workers"] and not any(_alive(pid) for pid in lines[-1]["workers"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.capability("F13")
def test_only_the_state_of_the_same_pipeline_over_the_same_rows_is_taken() -> None:
    state = numbered(20).shuffle(1).batch(4).stream().state()
    others: list[Dataset] = [
        numbered(21).shuffle(1),
        numbered(20).shuffle(2),
        numbered(20),
        numbered(20).shuffle(1).take(9),
    ]
    for other in others:
        with pytest.raises(InputError, match="another pipeline"):
            other.batch(4).stream().restore(state)
    with pytest.raises(InputError, match="another pipeline"):
        numbered(20).shuffle(1).batch(5).stream().restore(state)
    for none in ({"epoch": 0}, None, [state]):
        with pytest.raises(InputError, match="no state"):
            numbered(20).batch(4).stream().restore(cast(Any, none))
    for wrong in (-1, 1.0, True, None, 21):
        with pytest.raises(InputError, match="no position"):
            numbered(20).shuffle(1).batch(4).stream().restore({**state, "position": wrong})
    for damage, said in (
        ({"signals": {"level": 1}}, "other sync points"), ({"updates": {"level": 1}}, "other sync points"),
        ({"signals": 3}, "no state"), ({"updates": None}, "no state"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            numbered(20).shuffle(1).batch(4).stream().restore({**state, **damage})
