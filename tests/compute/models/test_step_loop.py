"""Executable and StepLoop: right answers, named mistakes, and the aliasing trap avoided."""

import gc
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import OrtValue, Session, ortvalue_over
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import ConfigurationError, GraphRefused, InputError

FLOAT = TensorProto.FLOAT
CARRY = {"next/w1": "w1", "next/w2": "w2", "next/total": "total"}


Shapes = Mapping[str, Sequence[int | str]]


def serialise(nodes: Sequence[NodeProto], inputs: Shapes, outputs: Shapes) -> bytes:
    def values(shapes: Shapes) -> list[ValueInfoProto]:
        return [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()]

    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def two_layers(width: int = 64, batch: int = 16) -> bytes:
    """A step of two matrices in which the old second one is read after the new one is known, so memory must not be
    shared.
    """
    node = helper.make_node
    return serialise(
        [
            node("MatMul", ["x", "w1"], ["h"]),
            node("MatMul", ["h", "w2"], ["p"]),
            node("Sub", ["p", "y"], ["d"]),
            node("Mul", ["d", "lr"], ["s"]),
            node("Transpose", ["h"], ["ht"], perm=[1, 0]),
            node("MatMul", ["ht", "s"], ["g2"]),
            node("Sub", ["w2", "g2"], ["next/w2"]),
            node("ReduceSum", ["next/w2"], ["moved"], keepdims=0),
            node("Mul", ["s", "moved"], ["late"]),
            node("MatMul", ["late", "w2"], ["dh"]),
            node("Transpose", ["x"], ["xt"], perm=[1, 0]),
            node("MatMul", ["xt", "dh"], ["g1"]),
            node("Mul", ["g1", "scale"], ["g1s"]),
            node("Sub", ["w1", "g1s"], ["next/w1"]),
            node("Mul", ["d", "d"], ["dd"]),
            node("ReduceSum", ["dd"], ["loss"], keepdims=0),
            node("Add", ["total", "loss"], ["next/total"]),
        ],
        {"w1": [width, width], "w2": [width, width], "total": [], "x": [batch, width], "y": [batch, width]}
        | {"lr": [1], "scale": [1]},
        {"next/w1": [width, width], "next/w2": [width, width], "next/total": [], "loss": []},
    )


def start(width: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    weights = {name: (rng.normal(size=(width, width)) / width**0.5).astype(np.float32) for name in ("w1", "w2")}
    return weights | {"total": np.zeros((), np.float32)}


def batches(count: int, width: int = 64, batch: int = 16):
    rng = np.random.default_rng(4)
    for _ in range(count):
        x, y = (rng.normal(size=(batch, width)).astype(np.float32) for _ in range(2))
        yield {"x": x, "y": y, "lr": np.array([1e-3], np.float32)}


SCALE = {"scale": np.ones(1, np.float32)}


@pytest.mark.parametrize("rebind", [False, True])
def test_the_loop_equals_plain_runs_bit_for_bit(rebind: bool):
    executable = Executable(two_layers())
    loop = StepLoop(executable, carry=CARRY, constants=SCALE, state=start(), rebind=rebind)
    state = start()
    for feeds in batches(7):
        outputs = executable.run(state | SCALE | feeds)
        state = {into: outputs[source] for source, into in CARRY.items()}
        loop.step(feeds)
        assert loop.read(["loss"])["loss"] == outputs["loss"]
        for name, array in loop.state().items():
            np.testing.assert_array_equal(array, state[name])
        np.testing.assert_array_equal(loop.read(["next/w1"])["next/w1"], state["w1"])
    assert state["total"] > 0


class Recorder:
    """A session whose bindings note the memory that they bind."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.bound: list[dict[str, dict[str, int]]] = []

    def io_binding(self) -> "Recorder":
        self.bound.append({"in": {}, "out": {}})
        return self

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self.bound[-1]["in"][name] = address(ortvalue)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self.bound[-1]["out"][name] = address(ortvalue)


def address(value: OrtValue) -> int:
    return value.numpy().ctypes.data


def test_no_output_shares_memory_with_an_input_of_the_same_step():
    """Binding an output onto its own input is silently wrong; what the loop binds shows that it never happens."""
    executable = Executable(two_layers())
    recorder = Recorder(executable.session)
    executable.session = cast(Session, recorder)
    StepLoop(executable, carry=CARRY, constants=SCALE, state=start())
    assert len(recorder.bound) == 2
    for bound in recorder.bound:
        assert bound["in"].keys() == executable.input.keys() and bound["out"].keys() == executable.output.keys()
        assert not set(bound["in"].values()) & set(bound["out"].values())
    even, odd = recorder.bound
    for source, into in CARRY.items():
        assert even["out"][source] == odd["in"][into] and odd["out"][source] == even["in"][into]


def test_the_trap_that_the_loop_avoids_is_real():
    executable = Executable(two_layers())
    state, binding = start(), executable.session.io_binding()
    feeds = next(batches(1))
    right = executable.run(state | SCALE | feeds)
    given = state | SCALE | feeds
    values = {name: ortvalue_over(array) for name, array in given.items()}
    for name, tensor in values.items():
        binding.bind_ortvalue_input(name, tensor)
    loss = ortvalue_over(np.zeros((), np.float32))
    for name in executable.output:
        binding.bind_ortvalue_output(name, values[CARRY[name]] if name in CARRY else loss)
    executable.session.run_with_iobinding(binding)
    assert np.abs(given["w1"] - right["next/w1"]).max() > 1e-6


def test_arrays_given_are_copied_and_arrays_returned_are_copies():
    loop = StepLoop(Executable(two_layers()), carry=CARRY, constants=SCALE, state=(given := start()))
    given["w1"][:] = 9
    feeds = next(batches(1))
    loop.step(feeds)
    first, loss = loop.state(), loop.read(["loss"])["loss"]
    kept = first["w1"].copy()
    loop.step(feeds)
    np.testing.assert_array_equal(first["w1"], kept)
    assert loop.read(["loss"])["loss"] < loss
    assert np.abs(kept).max() < 5


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_load_starts_again_from_any_turn(steps: int):
    loop = StepLoop(Executable(two_layers()), carry=CARRY, constants=SCALE, state=start())
    for feeds in batches(steps):
        loop.step(feeds)
    loop.load(start(), constants=SCALE)
    fresh = StepLoop(loop.executable, carry=CARRY, constants=SCALE, state=start())
    for feeds in batches(3):
        loop.step(feeds)
        fresh.step(feeds)
    for name, array in fresh.state().items():
        np.testing.assert_array_equal(loop.state()[name], array)


def test_a_step_allocates_no_tensor():
    loop = StepLoop(Executable(two_layers(256, 64)), carry=CARRY, constants=SCALE, state=start(256))
    feeds = list(batches(3, 256, 64))
    for each in feeds:
        loop.step(each)
    gc.collect()
    tracemalloc.start()
    for _ in range(20):
        for each in feeds:
            loop.step(each)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 256 * 4, "a step made an array as large as a feed"


def test_a_carried_value_that_passes_through_unchanged_stays():
    data = serialise(
        [helper.make_node("Identity", ["w"], ["next/w"]), helper.make_node("Add", ["w", "x"], ["y"])],
        {"w": [3], "x": [3]},
        {"next/w": [3], "y": [3]},
    )
    w = np.arange(3, dtype=np.float32)
    loop = StepLoop(Executable(data), carry={"next/w": "w"}, constants={}, state={"w": w})
    for number in range(5):
        loop.step({"x": np.full(3, number, np.float32)})
        np.testing.assert_array_equal(loop.state()["w"], w)
        np.testing.assert_array_equal(loop.read(["y"])["y"], w + number)


def feeds_with(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    feeds: dict[str, np.ndarray | None] = {**next(batches(1)), **changes}
    return {name: array for name, array in feeds.items() if array is not None}


MISTAKES = [
    (feeds_with(x=None), "missing 'x'"),
    (feeds_with(z=np.zeros(1, np.float32)), "unknown 'z'"),
    (feeds_with(x=np.zeros((16, 63), np.float32)), r"'x' must be float32\[16, 64\], got float32\[16, 63\]"),
    (feeds_with(x=np.zeros((16, 64))), r"'x' must be float32\[16, 64\], got float64\[16, 64\]"),
    (feeds_with() | {"x": [1.0]}, "'x' must be a NumPy array, got list"),
]


@pytest.mark.parametrize(("feeds", "reason"), MISTAKES, ids=[reason for _, reason in MISTAKES])
def test_a_wrong_feed_is_named_and_the_state_stays(feeds: dict[str, np.ndarray], reason: str):
    executable = Executable(two_layers())
    loop = StepLoop(executable, carry=CARRY, constants=SCALE, state=start())
    with pytest.raises(InputError, match=reason):
        loop.step(feeds)
    with pytest.raises(InputError, match=reason):
        executable.run(start() | SCALE | feeds)
    np.testing.assert_array_equal(loop.state()["w1"], start()["w1"])


def test_a_wrong_wiring_is_named():
    executable, constants, state = Executable(two_layers()), SCALE, start()
    cases: list[tuple[dict[str, str], dict[str, Any], dict[str, Any], str]] = [
        ({"next/w1": "w1", "next/w2": "w1"}, constants, state, "w1 is carried from more than one"),
        ({"next/w9": "w1"}, constants, state, "no output 'next/w9'"),
        ({"next/w1": "w9"}, constants, state, "no input 'w9'"),
        ({"next/w1": "x"}, constants, state, "cannot become input"),
        (CARRY, {"w1": state["w1"]}, state, "w1 cannot be both carried and constant"),
        (CARRY, constants | {"q": state["w1"]}, state, "step loop constants: unknown 'q'"),
        (CARRY, constants, {}, "step loop state: missing"),
        (CARRY, constants, state | {"w1": np.zeros((2, 2), np.float32)}, "step loop state: tensor 'w1' must be"),
    ]
    for carry, fixed, first, reason in cases:
        with pytest.raises(InputError, match=reason):
            StepLoop(executable, carry=carry, constants=fixed, state=first)
    with pytest.raises(InputError, match="no output 'gain'; it has next/w1"):
        StepLoop(executable, carry=CARRY, constants=constants, state=state).read(["gain"])


def test_what_an_executable_says_about_itself():
    executable = Executable(two_layers(8, 4))
    assert executable.input["x"] == TensorInfo("x", "float32", (4, 8))
    assert executable.output["next/w1"].nbytes == 8 * 8 * 4
    assert [tensor.name for tensor in executable.outputs] == ["next/w1", "next/w2", "next/total", "loss"]


def test_a_strided_feed_is_read_by_value():
    executable = Executable(serialise([helper.make_node("Neg", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]}))
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)


def test_one_output_may_be_read_by_its_name_alone():
    loop = StepLoop(Executable(two_layers()), carry=CARRY, constants=SCALE, state=start())
    assert list(loop.read("loss")) == ["loss"] and list(loop.read(["loss", "next/w1"])) == ["loss", "next/w1"]


def test_what_cannot_be_loaded_says_why():
    with pytest.raises(GraphRefused, match="ONNX Runtime cannot load the graph"):
        Executable(b"no graph")
    symbolic = serialise([helper.make_node("Neg", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    with pytest.raises(GraphRefused, match="'x' has the shape .*not static"):
        Executable(symbolic)
    with pytest.raises(ConfigurationError, match="no provider 'NoSuchProvider' here; it has .*CPUExecutionProvider"):
        Executable(two_layers(), provider="NoSuchProvider")
    with pytest.raises(ConfigurationError, match="threads must be a whole number of at least 1, got 0"):
        Executable(two_layers(), threads=0)
