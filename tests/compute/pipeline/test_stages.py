"""Processes that share the layers of a model: the same update, a part of the memory, and an end by name."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.compute import nn, optim
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.spread.reading import StepGraph
from coterie.compute.runtime.pipeline.step import PipelineStep
from coterie.compute.runtime.spread.memory import SharedMemory, View
from coterie.compute.runtime.spread.team import ProcessLost
from coterie.compute.training import Trainer
from coterie.errors import InputError
from tests.compute.spread.test_processes import ROWS, Arrays, data, is_running, loop_of, soon, trainer


@pytest.mark.capability("B8")
@pytest.mark.parametrize("processes", [2, 3])
def test_b8_stages_train_as_one_process(processes: int) -> None:
    """Dropout, a last batch with padding, weights of rows, and a second call that goes on from the first."""
    weights = np.random.default_rng(1).integers(0, 3, ROWS).astype(np.float32)
    weights[0] = 1
    deep = nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)
    )

    def trained(parallel: str) -> tuple[NDArray[Any], Arrays]:
        made = trainer(parallel, model=deep, optimizer=optim.clipped(optim.adam(0.01), 0.5))
        losses = [made.fit(data(), 1, sample_weight=weights).losses, made.fit(data(), 1, steps=3).losses]
        return np.concatenate(losses), made.params

    (losses, params), (right_losses, right) = trained(f"pipeline({processes})"), trained("data(1)")
    np.testing.assert_allclose(losses, right_losses, rtol=1e-5, atol=1e-6)
    for name, value in right.items():
        np.testing.assert_allclose(params[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_same_bits_each_time() -> None:
    first, second = (trainer("pipeline(2)", optimizer=optim.adam(0.01)) for _ in range(2))
    assert first.fit(data(), 2).losses.tobytes() == second.fit(data(), 2).losses.tobytes()
    assert all(value.tobytes() == second.params[name].tobytes() for name, value in first.params.items())


def test_a_lost_stage_ends_the_call_by_name_and_the_next_one_goes_on() -> None:
    made, alone = trainer("pipeline(3)", model=_wide(8)), trainer("data(1)", model=_wide(8))
    for each in (made, alone):
        each.fit(data(), 1)
    lost, other = loop_of(made).processes
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(ProcessLost, match="One of the 3 processes that share the steps ended"):
        made.fit(data(), 1)
    assert soon(lambda: not is_running(other))
    for each in (made, alone):
        each.fit(data(), 1)
    for name, value in alone.params.items():
        np.testing.assert_allclose(made.params[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def _wide(width: int) -> nn.Sequential:
    """Layers of as many numbers each."""
    return nn.Sequential(
        nn.Linear(12, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.Linear(width, 3),
    )


def _bytes(process: int, *kinds: str) -> int:
    """What a process holds of memory of these kinds."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return sum(int(status.split(f"{kind}:")[1].split()[0]) << 10 for kind in kinds)


def test_a_process_has_the_memory_of_its_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six large layers of 4 MB each with two moments: three in each process. A process that shares rows reads all of
    the weights, and has gradients of all. Without a measurement, so that the cut is the same under any load.
    """

    def seconds(data: bytes, feeds: Arrays, threads: int) -> tuple[float, ...]:
        return (1.0,) * len(StepGraph(data).nodes)

    monkeypatch.setattr("coterie.compute.runtime.pipeline.operator_times.node_seconds", seconds)
    large = [nn.Sequential(nn.Linear(1000, 1000), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(nn.Linear(12, 1000), *large, nn.Linear(1000, 3))
    held: dict[str, tuple[int, int]] = {}
    for parallel in ("pipeline(2)", "data(2)"):
        made = trainer(parallel, model=model, optimizer=optim.adam(0.0001))
        made.fit(data(), 2)
        (process,) = loop_of(made).processes
        held[parallel] = _bytes(process, "RssShmem"), _bytes(process, "RssShmem", "RssAnon")
    assert held["pipeline(2)"][0] < 0.75 * held["data(2)"][0]
    assert held["pipeline(2)"][1] < 0.75 * held["data(2)"][1]


def test_what_a_process_has_given_up_is_still_there() -> None:
    """The process that fills the memory for all keeps no more of it than it works on."""
    memory = SharedMemory.made(8 << 20)
    array = memory.array(View(0, (2 << 20,), "float32"))
    array[:] = 7
    before = _bytes(os.getpid(), "RssShmem")
    memory.release()
    assert before - _bytes(os.getpid(), "RssShmem") > 7 << 20
    assert np.all(array == 7)


def test_the_cut_says_what_each_process_has_to_do() -> None:
    made = trainer("pipeline(2)", model=_wide(64))
    made.fit(data(), 1)
    step = loop_of(made).spread
    assert isinstance(step, PipelineStep)
    assert len(step.cut.pieces) == 8 and step.cut.ticks == 10 and all(step.cut.seconds)


def test_a_trainer_is_refused_by_name_what_has_no_stages() -> None:
    shallow = Trainer(
        nn.Sequential(nn.Linear(12, 3)), softmax_cross_entropy, optim.sgd(0.1), batch_size=16, parallel="pipeline(2)"
    )
    with pytest.raises(InputError, match="can be cut into 1 stage, not into 2") as caught:
        shallow.fit(data(), 1)
    assert caught.value.reason == "not_spreadable"
