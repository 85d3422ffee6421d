"""State that is stepped where it lies: only where the graph proves it, and with the same bits."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper

from coterie.compute import numpy as xp
from coterie.compute import optim
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import NDArray
from coterie.compute.nn import train, zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named

node = helper.make_node
MOMENT = [node("Mul", ["m", "keep"], ["kept"]), node("Add", ["kept", "g"], ["next/m"])]
GRAPHS: dict[str, tuple[Sequence[NodeProto], Sequence[str]]] = {
    "a moment": (MOMENT, ["m"]),
    "a counter, read by its writer": ([node("Add", ["m", "g"], ["next/m"])], ["m"]),
    "the new value may be read later": ([*MOMENT, node("Exp", ["next/m"], ["other"])], ["m"]),
    "the old value is read by a node that may run later": ([*MOMENT, node("Exp", ["m"], ["other"])], []),
    "a product reads it before another one": (
        [
            node("MatMul", ["m", "keep"], ["kept"]),
            node("Exp", ["kept"], ["other"]),
            node("MatMul", ["other", "g"], ["step"]),
            node("Sub", ["m", "step"], ["next/m"]),
        ],
        ["m"],
    ),
    "a product reads it that may become one node with the writer": (
        [
            node("MatMul", ["m", "keep"], ["kept"]),
            node("Add", ["kept", "g"], ["moved"]),
            node("Tanh", ["moved"], ["next/m"]),
        ],
        [],
    ),
    "a product may read it later": ([*MOMENT, node("MatMul", ["m", "keep"], ["other"])], []),
    "a product writes it": ([node("Mul", ["m", "keep"], ["kept"]), node("MatMul", ["kept", "g"], ["next/m"])], []),
    "a view of it is read later": (
        [
            node("Reshape", ["m", "shape"], ["view"]),
            node("Add", ["m", "g"], ["next/m"]),
            node("Mul", ["view", "next/m"], ["other"]),
        ],
        [],
    ),
    "a view of it is read before, which is not proven": (
        [node("Reshape", ["m", "shape"], ["view"]), node("Add", ["view", "g"], ["next/m"])],
        [],
    ),
    "a scale by a constant may melt into a product that runs later": (
        [
            node("Mul", ["m", "constant"], ["scaled"]),
            node("Add", ["scaled", "g"], ["next/m"]),
            node("MatMul", ["scaled", "keep"], ["other"]),
        ],
        [],
    ),
    "a scale by a constant on the way": (
        [node("Mul", ["m", "constant"], ["scaled"]), node("Add", ["scaled", "g"], ["next/m"])],
        ["m"],
    ),
    "a scale by a constant that must be computed": (
        [
            node("Mul", ["constant", "constant"], ["square"]),
            node("Mul", ["m", "square"], ["scaled"]),
            node("Add", ["scaled", "g"], ["next/m"]),
            node("MatMul", ["scaled", "keep"], ["other"]),
        ],
        [],
    ),
    "nothing makes the output": ([node("Exp", ["m"], ["other"])], []),
}


@pytest.mark.capability("E18")
@pytest.mark.parametrize(("nodes", "shared"), GRAPHS.values(), ids=GRAPHS)
def test_only_what_is_proven_is_shared(nodes: Sequence[NodeProto], shared: Sequence[str]) -> None:
    made = {name for each in nodes for name in each.output}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])
        for name in ("m", "keep", "g", "next/m", "other")
    }
    values["shape"] = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    outputs = [values[name] for name in ("next/m", "other") if name in made]
    constant = helper.make_tensor("constant", TensorProto.FLOAT, [1], [0.5])
    inputs = [values[name] for name in ("m", "keep", "g", "shape")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [constant])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert sorted(stepped_in_place(data, {"next/m": "m"})) == sorted(shared)


def training(rule: optim.Optimizer, seed: int, width: int) -> tuple[bytes, dict[str, NDArray]]:
    model = zoo.mlp([6, width, 3])
    params = {f"shared/{name}": array for name, array in model.init(seed).items()}
    first = rule.init({name.removeprefix("shared/"): Array(array) for name, array in params.items()})
    state = params | {f"optimizer/{name}": array.numpy() for name, array in first.items()}

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def group(role: str) -> Mapping[str, Array]:
            return {name.removeprefix(role): array for name, array in inputs.items() if name.startswith(role)}

        def loss(params: Mapping[str, Array]) -> Array:
            return xp.mean(softmax_cross_entropy(model(params, inputs["x"], train()), inputs["y"]))

        hyper = {name: Array(np.array([value], np.float32)) for name, value in rule.hyper.items()}
        value, gradients = value_and_grad(loss)(group("shared/"))
        moved, after = rule.update(gradients, group("optimizer/"), group("shared/"), hyper, inputs["active"])
        outputs = {f"next/shared/{name}": array for name, array in moved.items()}
        return outputs | {f"next/optimizer/{name}": array for name, array in after.items()} | {"loss": value}

    specs = {name: TensorSpec(array.shape) for name, array in state.items()}
    specs |= {"x": TensorSpec((8, 6)), "y": TensorSpec((8,), "int32"), "active": TensorSpec((1,))}
    return to_onnx(optimise(trace_named(step, specs)), name="step"), state


RULES = {
    "adam": optim.adam(0.05),
    "packed adam": optim.packed(optim.adam(0.05)),
    "momentum": optim.sgd(0.1, momentum=0.9),
}


@pytest.mark.capability("E18")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=10)
@given(seed=st.integers(0, 100), width=st.integers(1, 40), off=st.integers(0, 5))
def test_training_in_place_gives_the_same_bits(rule: optim.Optimizer, seed: int, width: int, off: int) -> None:
    data, state = training(rule, seed, width)
    carry = {f"next/{name}": name for name in state}
    executable = Executable(data)
    apart, lying = (
        StepLoop(executable, carry=carry, constants={}, state=state, in_place=in_place) for in_place in (False, True)
    )
    rng = np.random.default_rng(seed)
    for index in range(6):
        feeds = {
            "x": rng.normal(size=(8, 6)).astype(np.float32),
            "y": rng.integers(0, 3, 8).astype(np.int32),
            "active": np.array([float(index != off)], np.float32),
        }
        for loop in (apart, lying):
            loop.step(feeds)
        assert {name: array.tobytes() for name, array in apart.state().items()} == {
            name: array.tobytes() for name, array in lying.state().items()
        }
        assert apart.read(["loss"])["loss"] == lying.read(["loss"])["loss"]


RECURRENCES: Mapping[str, Callable[[Array, Array, Array], Array]] = {
    "tanh(m w + b)": lambda m, w, b: xp.tanh(m @ w + b),
    "m w + b": lambda m, w, b: m @ w + b,
    "m w + m": lambda m, w, b: m @ w + m,
    "m - 0.1 w m": lambda m, w, b: m - 0.1 * (w @ m),
    "m + tanh(m w) w": lambda m, w, b: m + xp.tanh(m @ w) @ w,
}


@pytest.mark.parametrize("rule", RECURRENCES.values(), ids=RECURRENCES)
def test_state_that_goes_through_products_gives_the_same_bits(rule: Callable[[Array, Array, Array], Array]) -> None:
    specs = {"m": TensorSpec((64, 64)), "w": TensorSpec((64, 64)), "b": TensorSpec((64,))}
    graph = trace_named(lambda inputs: {"next/m": rule(inputs["m"], inputs["w"], inputs["b"])}, specs)
    executable = Executable(to_onnx(graph, name="step"))
    rng = np.random.default_rng(0)
    given = {name: (rng.normal(size=spec.shape) / 8).astype(np.float32) for name, spec in specs.items()}
    state, constants = {"m": given.pop("m")}, given
    apart, lying = (
        StepLoop(executable, carry={"next/m": "m"}, constants=constants, state=state, in_place=in_place)
        for in_place in (False, True)
    )
    for loop in (apart, lying):
        for _ in range(3):
            loop.step({})
    assert apart.state()["m"].tobytes() == lying.state()["m"].tobytes()


def test_graphs_made_to_take_long_take_no_time() -> None:
    """A chain of nodes that a constant may make idle, each read twice by the next, has two to the power of 3000
    paths; and it is deeper than functions may be nested.
    """
    chain = [node("Max", [f"m{at}", f"m{at}", "constant"], [f"m{at + 1}"]) for at in range(3000)]
    m, after = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("m0", "next/m"))
    constant = helper.make_tensor("constant", TensorProto.FLOAT, [1], [0.5])
    graph = helper.make_graph([*chain, node("Add", ["m0", "m3000"], ["next/m"])], "g", [m], [after], [constant])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert stepped_in_place(data, {"next/m": "m0"}) == {"m0"}


def test_an_old_value_that_is_asked_for_is_kept() -> None:
    m, g, after = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("m", "g", "next/m"))
    graph = helper.make_graph([node("Add", ["m", "g"], ["next/m"])], "g", [m, g], [after, m])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert not stepped_in_place(data, {"next/m": "m"})


def test_the_moments_of_adam_lie_still_and_weights_that_pass_gradients_back_do_not() -> None:
    data, state = training(RULES["adam"], 0, 5)
    shared = stepped_in_place(data, {f"next/{name}": name for name in state})
    assert {name for name in state if name.endswith((".first", ".second"))} <= shared
    assert "shared/0.weight" in shared and "shared/2.weight" not in shared
