"""Many steps in one call: equal to plain steps, one host call for all, a graph whose size does not depend on how many
(E20, B10).
"""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import data_sink, optim, use_mode
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.data.batches import Batches
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.step.step import TrainStep
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.training.sink import sunk, sunk_executable
from coterie.compute.training.stacks import Stacks
from coterie.errors import ConfigurationError, InputError, TraceError

CARRY = {"next/w": "w", "next/m": "m"}


def step_graph() -> Graph:
    """A step of least squares with momentum: state w and m, feeds x and y, constant lr, result loss."""

    def step(inputs: GraphInputs) -> dict[str, Array]:
        error = inputs["x"] @ inputs["w"] - inputs["y"]
        velocity = 0.9 * inputs["m"] + xp.matrix_transpose(inputs["x"]) @ error
        return {
            "next/w": inputs["w"] - inputs["lr"] * velocity,
            "next/m": velocity,
            "loss": xp.sum(error * error, keepdims=True),
        }

    shapes = {"w": (5, 2), "m": (5, 2), "x": (3, 5), "y": (3, 2), "lr": (1,)}
    return optimise(trace_named(step, {name: TensorSpec(shape) for name, shape in shapes.items()}))


def feeds(count: int) -> list[dict[str, NDArray]]:
    rng = np.random.default_rng(2)
    return [{n: rng.normal(size=s).astype(np.float32) for n, s in (("x", (3, 5)), ("y", (3, 2)))} for _ in range(count)]


@pytest.mark.capability("E20")
def test_e20_a_loop_inside_the_graph_equals_steps_from_outside() -> None:
    graph, batches = step_graph(), feeds(24)
    state = {name: np.zeros((5, 2), np.float32) for name in ("w", "m")}
    constants = {"lr": np.array([0.02], np.float32)}
    plain = StepLoop(Executable(to_onnx(graph, name="step")), carry=CARRY, constants=constants, state=state)
    losses: list[float] = []
    for batch in batches:
        plain.step(batch)
        losses.append(plain.read(["loss"])["loss"].item())
    inside = StepLoop(
        sunk_executable(graph, 8, carry=CARRY, constants=["lr"]), carry=CARRY, constants=constants, state=state
    )
    found: list[float] = []
    calls = 0
    for first in range(0, 24, 8):
        inside.step({name: np.stack([b[name] for b in batches[first : first + 8]]) for name in ("x", "y")})
        found += inside.read(["loss"])["loss"].reshape(-1).tolist()
        calls += 1
    assert calls == 24 / 8
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    for name, value in plain.state().items():
        np.testing.assert_allclose(inside.state()[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.capability("E20")
def test_e20_the_graph_does_not_grow_with_the_steps() -> None:
    sizes: list[int] = []
    for steps in (2, 64):
        taken = sunk(step_graph(), steps, carry=CARRY, constants=["lr"])
        model = onnx.load_from_string(to_onnx(taken, name="sunk", target="cpu"))
        assert {node.op_type for node in model.graph.node} & {"Scan", "Loop"}
        sizes.append(
            len(taken.nodes)
            + sum(len(node.attributes["body"].nodes) for node in taken.nodes if "body" in node.attributes)
        )
    assert sizes[0] == sizes[1]


@pytest.mark.capability("E20")
@pytest.mark.parametrize("provider", ["WebGpuExecutionProvider", "QNNExecutionProvider", "CoreMLExecutionProvider"])
def test_e20_providers_without_loops_are_refused_by_name(provider: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{provider} has no Loop"):
        sunk_executable(step_graph(), 8, carry=CARRY, constants=["lr"], provider=provider)
    with pytest.raises(ConfigurationError, match=f"{provider} has no Loop"):
        data_sink(lambda state, batch: (state, state), [], 8, provider=provider)


def test_a_loop_needs_names_that_are_there() -> None:
    with pytest.raises(InputError, match="steps must be a whole number of at least 1"):
        sunk(step_graph(), 0, carry=CARRY)
    with pytest.raises(InputError, match="the graph has no 'v', 'next/v'"):
        sunk(step_graph(), 2, carry={"next/v": "v"})


def objective(params: dict[str, Array], batch: dict[str, Array]) -> Array:
    error = xp.tanh(batch["x"] @ params["w"]) - batch["y"]
    return xp.sum(error * error, axis=1)


STEP = TrainStep(objective, optim.adam(0.05))
PARAMS = {"w": np.full((5, 2), 0.1, np.float32)}


def batches(rows: int = 60, **options: Any) -> Batches:
    rng = np.random.default_rng(3)
    data = {"x": rng.normal(size=(rows, 5)).astype(np.float32), "y": rng.normal(size=(rows, 2)).astype(np.float32)}
    return Batches(data, batch_size=4, **options)


@pytest.mark.capability("B10", "E20")
def test_b10_a_sink_of_eight_equals_eight_plain_steps() -> None:
    sink = data_sink(STEP, batches(epochs=None), sink_size=8)
    state = plain = STEP.init(PARAMS)
    source = batches(epochs=None)
    for call in range(1, 4):
        state, losses = sink(state)
        expected: list[float] = []
        for _ in range(8):
            plain, loss = STEP(plain, next(source))
            expected.append(loss.item())
        np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(state["params"]["w"].numpy(), plain["params"]["w"].numpy(), rtol=1e-5, atol=1e-6)
        assert (sink.calls, sink.steps, sink.compilations) == (call, 8 * call, 1)
    sink.close()


def test_a_short_last_stack_runs_and_the_end_is_told() -> None:
    sink = data_sink(STEP, batches(rows=40), sink_size=4)
    state, counts = STEP.init(PARAMS), list[int]()
    for _ in range(3):
        state, losses = sink(state)
        counts.append(losses.shape[0])
    assert counts == [4, 4, 2] and sink.compilations == 2
    with pytest.raises(InputError, match="the dataset ended after 10 batches.*epochs=None"):
        sink(state)


def test_a_sink_may_decide_on_arrays_and_runs_in_both_modes() -> None:
    def step(total: Array, x: Array) -> tuple[Array, Array]:
        if total > 2.0:
            total = total - x
        else:
            total = total + x
        return total, total

    numbers = [np.float32(1.5)] * 6
    graph = data_sink(step, numbers, 6)(Array(np.zeros((), np.float32)))[1].numpy()
    with use_mode("eager"):
        eager = data_sink(step, numbers, 6)(Array(np.zeros((), np.float32)))[1].numpy()
    assert graph.tolist() == eager.tolist() == [1.5, 3.0, 1.5, 3.0, 1.5, 3.0]


def test_a_sink_refuses_what_is_no_graph() -> None:
    with pytest.raises(TraceError, match="being traced"):
        data_sink(lambda total, x: (total + float(x), total), [np.float32(1)] * 2, 2)(np.float32(0))


def test_stacks_are_made_ahead_in_another_thread() -> None:
    seen: list[str] = []
    third = threading.Event()

    def source() -> Iterator[NDArray]:
        for number in range(5):
            seen.append(threading.current_thread().name)
            if number == 3:
                third.set()
            yield np.full(2, number, np.float32)

    stacks = Stacks(source(), 2)
    assert next(stacks).tolist() == [[0, 0], [1, 1]]
    assert third.wait(60), "the next stack is read before it is asked for"
    assert [stack.shape for stack in stacks] == [(2, 2), (1, 2)]
    assert all(name.startswith("coterie-stacks") for name in seen)


def test_what_the_dataset_raises_is_raised_at_its_stack() -> None:
    def source() -> Iterator[NDArray]:
        yield np.zeros(2)
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(Stacks(source(), 2))
    with pytest.raises(InputError, match="different shapes"):
        next(Stacks([np.zeros(2), np.zeros(3)], 2))
    with pytest.raises(InputError, match="sink_size must be a whole number of at least 1"):
        Stacks([], 0)
