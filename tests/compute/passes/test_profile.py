"""The profile names the user's slow lines."""

import inspect

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.control.functions import scan
from coterie.compute.profile import profile
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from coterie.errors import InputError


def model(x: Array, w: Array) -> Array:
    small = cnp.tanh(x[:2])
    slow = cnp.exp(cnp.sin(x @ w @ w))  # the slow line
    return cnp.sum(slow) + cnp.sum(small)


LINES, FIRST = inspect.getsourcelines(model)
SLOW = f"test_profile.py:{FIRST + next(i for i, line in enumerate(LINES) if 'the slow line' in line)}"


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(256, 300)).astype(np.float32), rng.normal(size=(300, 300)).astype(np.float32) / 20


def test_a_slow_line_comes_first() -> None:
    found = profile(model, data(), steps=20)
    first = found.rows[0]
    assert first.source == SLOW
    assert first.share > 0.5
    assert {"Sin", "Exp"} <= set(first.operators)
    assert first.count == 4  # two products, a sine and an exponential, once each step
    assert str(found).splitlines()[1].startswith(SLOW)
    assert sum(row.share for row in found.rows) == pytest.approx(1.0)
    assert [row.seconds for row in found.rows] == sorted((row.seconds for row in found.rows), reverse=True)


def test_the_gradient_of_a_line_counts_for_the_line() -> None:
    forward, both = profile(model, data(), steps=20), profile(grad(model, (0, 1)), data(), steps=20)
    assert both.rows[0].source == SLOW
    assert both.rows[0].count > forward.rows[0].count


def test_a_graph_is_profiled_by_names_and_steps_in_a_loop_are_counted() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        return {"y": scan(lambda c, x: (cnp.tanh(c + x) * 0.5, None), i["h"], i["xs"])[0] * i["scale"]}

    specs = {"h": TensorSpec((8,)), "xs": TensorSpec((5, 8)), "scale": TensorSpec(())}
    feeds = {name: np.ones(spec.shape, np.float32) for name, spec in specs.items()}
    found = profile(trace_named(fn, specs), feeds, steps=4)
    tanh = next(row for row in found.rows if "Tanh" in row.operators)
    assert tanh.source.startswith("test_profile.py:")
    assert tanh.count >= 15  # three operators in each of five steps


def test_inputs_and_outputs_may_share_their_names() -> None:
    x = np.ones(3, np.float32)

    def add(x: Array) -> dict[str, Array]:
        return {"0": x + 1.0}

    graph = trace(add, x).graph
    assert list(graph.inputs) == list(graph.outputs) == ["0"]
    assert [row.operators for row in profile(graph, {"0": x}, steps=2).rows] == [("Add",)]
    named = trace_named(lambda i: {"y": i["y"] + i["result/y"]}, dict.fromkeys(("y", "result/y"), TensorSpec((3,))))
    assert len(profile(named, {"y": x, "result/y": x}, steps=2).rows) == 1


def test_steps_and_inputs_are_checked() -> None:
    with pytest.raises(InputError, match="steps"):
        profile(model, data(), steps=0)
    graph = trace_named(lambda i: {"y": i["x"] + 1.0}, {"x": TensorSpec((2,))})
    with pytest.raises(InputError, match="x"):
        profile(graph, {"x": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match="the inputs are a list"):
        profile(graph, [np.zeros(2, np.float32)])
    with pytest.raises(InputError, match="the inputs are a dict"):
        profile(model, dict(zip("xw", data(), strict=True)))
