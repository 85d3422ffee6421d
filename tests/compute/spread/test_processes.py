"""Processes that share steps: the same update, nothing left behind, and an end by name."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.compute import nn, optim
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import Optimizer
from coterie.compute.runtime.spread.asked import Parallel, read_parallel
from coterie.compute.runtime.spread.loop import SpreadLoop, SpreadStep
from coterie.compute.runtime.spread.team import ProcessLost
from coterie.compute.step import Precision
from coterie.compute.training import Trainer
from coterie.errors import ConfigurationError, InputError
from tests.patience import patience

ROWS = 50
Arrays = dict[str, NDArray[Any]]


def data(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "x": random.normal(size=(ROWS, 12)).astype(np.float32),
        "y": random.integers(0, 3, ROWS).astype(np.int32),
    }


def network(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))


def trainer(parallel: str = "data(2)", **changes: Any) -> Trainer:
    given: dict[str, Any] = {"optimizer": optim.sgd(0.1), "model": network(), "batch_size": 16, "seed": 3, **changes}
    return Trainer(given.pop("model"), softmax_cross_entropy, given.pop("optimizer"), parallel=parallel, **given)


def loop_of(trained: Trainer) -> SpreadLoop:
    (loop,) = trained._loops.values()  # pyright: ignore[reportPrivateUsage]  whose processes are looked at
    assert isinstance(loop, SpreadLoop)
    return loop


def is_running(process: int) -> bool:
    """Whether it runs; what has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def soon(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + patience(10)
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: optim.sgd(0.1),
    "momentum": lambda: optim.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optim.adam(0.01),
    "clipped": lambda: optim.clipped(optim.adamw(0.01), 0.05),
}


@pytest.mark.capability("B8")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_b8_two_processes_train_as_one(optimizer: str) -> None:
    """Dropout, a last batch with padding, weights of rows, layers wide enough to be moved by stretches, and a second
    call that goes on from the first.
    """
    weights = np.random.default_rng(1).integers(0, 3, ROWS).astype(np.float32)
    weights[0] = 1

    def trained(parallel: str) -> tuple[NDArray[Any], Arrays]:
        made = trainer(parallel, model=network(2000), optimizer=OPTIMIZERS[optimizer]())
        losses = [made.fit(data(), 1, sample_weight=weights).losses, made.fit(data(), 1, steps=3).losses]
        return np.concatenate(losses), made.params

    (losses, params), (right_losses, right) = trained("data(2)"), trained("data(1)")
    np.testing.assert_allclose(losses, right_losses, rtol=1e-5, atol=1e-6)
    for name, value in right.items():
        np.testing.assert_allclose(params[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_training_goes_on_from_a_file_whatever_number_of_processes_wrote_it(tmp_path: Path) -> None:
    first, whole = trainer(), trainer("data(1)")
    first.fit(data(), 1, steps=2)
    first.save(tmp_path / "half.safetensors")
    second = trainer("data(3)")
    second.load(tmp_path / "half.safetensors")
    second.fit(data(), 1)
    whole.fit(data(), 1, steps=2)
    whole.fit(data(), 1)
    for name, value in whole.params.items():
        np.testing.assert_allclose(second.params[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_large_update_is_moved_by_stretches_where_it_lies() -> None:
    """Each process moves half of the weights and of both moments, in the memory in which they are."""
    made = trainer(model=network(6000), optimizer=optim.adam(0.01))
    made.fit(data(), 1, steps=1)
    spread = loop_of(made).spread
    assert isinstance(spread, SpreadStep)
    last = [graphs[-1] for graphs in spread.graphs]
    names = [[bound.tensor for bound in stage.outputs if bound.home == "output"] for stage in last]
    large = {name for name in names[0] if "0.weight" in name}
    assert len(large) == 3 and large <= set(names[1])
    for stage in last:
        assert all(bound.shape == (36_000,) for bound in stage.outputs if bound.tensor in large)


def test_the_same_bits_each_time() -> None:
    first, second = (trainer(optimizer=optim.adam(0.01)) for _ in range(2))
    assert first.fit(data(), 2).losses.tobytes() == second.fit(data(), 2).losses.tobytes()
    assert all(value.tobytes() == second.params[name].tobytes() for name, value in first.params.items())


def test_a_scaled_loss_that_overflows_is_skipped_by_all() -> None:
    made = trainer(precision=Precision(scale=2.0**24), model=nn.Sequential(nn.Linear(12, 3)))
    alone = trainer("data(1)", precision=Precision(scale=2.0**24), model=nn.Sequential(nn.Linear(12, 3)))
    for each in (made, alone):
        each.fit({name: value * 100 if name == "x" else value for name, value in data().items()}, 2)
    for name, value in alone.params.items():
        np.testing.assert_allclose(made.params[name], value, rtol=1e-2, atol=1e-3, err_msg=name)


def test_a_lost_process_ends_the_call_by_name_and_the_next_one_goes_on() -> None:
    made, alone = trainer(), trainer("data(1)")
    for each in (made, alone):
        each.fit(data(), 1)
    (process,) = loop_of(made).processes
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ProcessLost, match="One of the 2 processes that share the steps ended") as caught:
        made.fit(data(), 1)
    assert caught.value.reason == "process_lost" and caught.value.hint
    for each in (made, alone):
        each.fit(data(), 1)
    for name, value in alone.params.items():
        np.testing.assert_allclose(made.params[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_an_index_outside_of_its_table_is_told_whoever_has_the_row() -> None:
    """In the first row it fails here, in the last one in the other process."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.MeanPool(), nn.Linear(4, 3))
    for row in (0, 15):
        x = np.zeros((16, 2), np.int32)
        x[row] = 99
        with pytest.raises(InputError, match=r"An index among the inputs leaves the axis"):
            trainer(model=model).fit({"x": x, "y": np.zeros(16, np.int32)}, 1)


def test_processes_end_with_what_started_them() -> None:
    made = trainer()
    made.fit(data(), 1)
    processes = loop_of(made).processes
    assert all(map(is_running, processes))
    del made
    assert soon(lambda: not any(map(is_running, processes)))


SCRIPT = """
import os, sys, time
sys.path[:0] = {path!r}
from tests.compute.spread.test_processes import data, loop_of, trainer
made = trainer("data(3)")
made.fit(data(), 1)
print(*loop_of(made).processes, flush=True)
{then}
"""
STEPS_ON = "while True: made.fit(data(), 1)"
HAS_A_CHILD = "os.fork(); time.sleep(600)"


@pytest.mark.parametrize("then", ["time.sleep(600)", STEPS_ON, HAS_A_CHILD])
def test_nothing_is_left_of_a_process_that_is_killed(then: str) -> None:
    """While it waits, while it steps, and where a child holds its ends of the lines. The memory has no name that could
    be left.
    """
    root = str(Path(__file__).resolve().parents[3])
    command = [sys.executable, "-c", SCRIPT.format(path=[root, *sys.path], then=then)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as one:
        assert one.stdout is not None
        processes = [int(word) for word in one.stdout.readline().split()]
        assert len(processes) == 2 and all(map(is_running, processes))
        maps = Path(f"/proc/{processes[0]}/maps").read_text(encoding="utf-8").splitlines()
        assert all("(deleted)" in line for line in maps if "coterie" in line and ".so" not in line)
        one.kill()
        gone = soon(lambda: not any(map(is_running, processes)))
        if then == HAS_A_CHILD:
            os.killpg(one.pid, signal.SIGKILL)
    assert gone


def test_a_process_that_shares_never_loads_the_compiler() -> None:
    code = (
        "import sys\nimport coterie.compute.runtime.spread.worker\n"
        "print(*[m for m in sys.modules if m.startswith(('coterie.compute.trace', 'coterie.compute.autodiff', "
        "'coterie.compute.passes', 'coterie.compute.nn', 'coterie.compute.array'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "")


def test_one_text_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.compute.runtime.spread.asked._cores", lambda: 8)
    assert read_parallel("data(3)", 1) == Parallel(3)
    assert read_parallel("pipeline(3)", 1) == Parallel(3, layers=True)
    assert read_parallel("auto", 3) == Parallel(2, measured=True)
    assert read_parallel("auto", 16) == Parallel(1, measured=True)
    for text, why in {
        "layers(2)": "there is no 'layers'",
        "data": "needs processes",
        "data(0)": "at least 1",
    }.items():
        with pytest.raises(ConfigurationError, match=why):
            read_parallel(text, 1)


@pytest.mark.parametrize(("seconds", "shares"), [(0.5, True), (0.95, False), (2.0, False)])
def test_auto_shares_where_it_was_measured_to_pay(
    seconds: float, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process takes a second for a step."""
    monkeypatch.setattr("coterie.compute.runtime.spread.asked._cores", lambda: 2)
    measured: dict[str, float] = {"StepLoop": 1.0, "SteadyLoop": 1.0, "SpreadLoop": seconds}

    def timed(step: Any, *more: Any) -> float:
        return measured[type(step.__self__).__name__]

    monkeypatch.setattr("coterie.compute.runtime.spread.choice._seconds", timed)
    made = trainer("auto")
    made.fit(data(), 1)
    (loop,) = made._loops.values()  # pyright: ignore[reportPrivateUsage]
    assert isinstance(loop, SpreadLoop) is shares


def test_auto_trains_in_one_process_what_cannot_be_shared_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.compute.runtime.spread.asked._cores", lambda: 2)
    made, alone = trainer("auto", batch_size=1), trainer("data(1)", batch_size=1)
    with pytest.warns(RuntimeWarning, match="parallel='auto' trains in one process: "):
        made.fit(data(), 1)
    alone.fit(data(), 1)
    assert all(np.array_equal(value, alone.params[name]) for name, value in made.params.items())
    with pytest.raises(InputError) as caught:
        trainer("data(2)", batch_size=1).fit(data(), 1)
    assert caught.value.reason == "not_spreadable"


def test_what_does_not_go_together_is_refused() -> None:
    others: tuple[dict[str, Any], ...] = ({"sink_size": 4}, {"provider": "Other"})
    for other in others:
        with pytest.raises(InputError, match="processes share steps on the CPU, one step a call"):
            trainer(**other)
