"""A step in two graphs: the frozen front with constant weights for an accelerator, the rest on the CPU."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.hybrid import split
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.hybrid_loop import HybridLoop, Trunk, hybrid
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import GraphRefused, InputError
from tests.compute.providers.fakes import failing
from tests.compute.providers.steps import CARRY, FED, case, feeds

BATCH = ("batch/x", "batch/y")
FROZEN = {"frozen/kernel": feeds()["frozen/kernel"]}


def operators(data: bytes) -> set[str]:
    return {str(node.op_type) for node in onnx.load_from_string(data).graph.node}


def test_trunk_and_head_compute_the_step() -> None:
    given = feeds(3) | FROZEN
    parts = split(case().data, frozen=FROZEN, batch=BATCH)
    trunk, head = Executable(parts.trunk), Executable(parts.head)
    features = trunk.run({"batch/x": given["batch/x"]})
    found = head.run({name: given[name] for name in head.input if name in given} | features)
    expected = Executable(case().data).run(given)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


@pytest.mark.capability("E10")
def test_e10_the_trunk_holds_the_frozen_front_with_constant_weights() -> None:
    parts = split(case().data, frozen=FROZEN, batch=BATCH)
    trunk, head = Executable(parts.trunk), Executable(parts.head)
    assert list(trunk.input) == ["batch/x"] and tuple(trunk.output) == parts.cut
    assert "frozen/kernel" in {tensor.name for tensor in onnx.load_from_string(parts.trunk).graph.initializer}
    assert {"Conv", "Relu", "MaxPool"} <= operators(parts.trunk)
    assert operators(parts.head).isdisjoint({"Conv", "MaxPool"}) and "batch/x" not in head.input
    check_graph(parts.trunk)
    check_graph(parts.head)


def train(loop: StepLoop | HybridLoop) -> list[NDArray]:
    losses: list[NDArray] = []
    for number in range(5):
        loop.step({name: feeds(number)[name] for name in FED})
        losses.append(loop.read(["loss"])["loss"])
    return [*losses, *(value for _, value in sorted(loop.state().items()))]


def made(trunk: Executable, head: bytes, told: list[Fallback]) -> HybridLoop:
    step = case()
    return HybridLoop(trunk, Executable(head), carry=CARRY, constants=FROZEN, state=step.state, told=told.append)


def test_training_in_two_places_is_training() -> None:
    step = case()
    whole = StepLoop(Executable(step.data), carry=CARRY, constants=FROZEN, state=step.state)
    parts = split(step.data, frozen=FROZEN, batch=BATCH)
    loop = made(Executable(parts.trunk), parts.head, [])
    assert {info.name for info in loop.feeds} == set(FED) == {info.name for info in whole.feeds}
    first, expected = train(loop), train(whole)
    assert all(np.array_equal(a, b) for a, b in zip(first, expected, strict=True))
    loop.load(step.state, constants=FROZEN)
    assert all(np.array_equal(a, b) for a, b in zip(train(loop), expected, strict=True))


@pytest.mark.parametrize("at", [0, 2])
def test_a_trunk_whose_provider_fails_goes_on_on_the_cpu(at: int) -> None:
    parts = split(case().data, frozen=FROZEN, batch=BATCH)
    told: list[Fallback] = []
    frail = made(failing("Frail", at).executable(parts.trunk), parts.head, told)
    steady = made(Executable(parts.trunk), parts.head, [])
    assert all(np.array_equal(a, b) for a, b in zip(train(frail), train(steady), strict=True))
    assert [(each.provider, each.steps) for each in told] == [("Frail", at)]
    assert frail.trunk.executable.provider == CPU


def test_a_quantiser_is_shown_what_the_trunk_reads() -> None:
    shown: list[Mapping[str, NDArray]] = []

    def quantise(model: bytes, batches: Sequence[Mapping[str, NDArray]]) -> bytes:
        shown.extend(batches)
        return model

    option = Trunk(quantise=quantise, calibration=2)
    given = [{name: feeds(number)[name] for name in FED} for number in range(3)]
    parts = hybrid(case().data, option, frozen=FROZEN, batch=BATCH, calibration=given)
    assert parts == split(case().data, frozen=FROZEN, batch=BATCH)
    assert [list(batch) for batch in shown] == [["batch/x"], ["batch/x"]]
    assert np.array_equal(shown[1]["batch/x"], feeds(1)["batch/x"])


def test_a_step_without_a_frozen_front_is_refused() -> None:
    with pytest.raises(GraphRefused, match="no frozen front"):
        split(case().data, frozen={}, batch=BATCH)
    with pytest.raises(GraphRefused, match="no frozen front"):
        split(case().data, frozen=FROZEN, batch=["batch/y"])  # x then counts as the head's own


def test_a_front_that_is_the_result_cannot_be_cut_off() -> None:
    def predict(i: GraphInputs) -> dict[str, Array]:
        return {"output": i["batch/x"] @ i["frozen/w"]}

    specs = {"batch/x": TensorSpec((2, 3)), "frozen/w": TensorSpec((3, 2))}
    data = to_onnx(trace_named(predict, specs), name="infer")
    with pytest.raises(GraphRefused, match="makes 'output', a result"):
        split(data, frozen={"frozen/w": np.ones((3, 2), np.float32)}, batch=["batch/x"])
    with pytest.raises(InputError, match="no input 'batch/z'"):
        split(data, frozen={}, batch=["batch/z"])
