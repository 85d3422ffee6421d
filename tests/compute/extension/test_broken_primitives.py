"""A primitive that breaks a law, a definition, a call or a text that is wrong: each is refused by name."""

# pyright: reportSelfClsParameterName=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import (
    Registry,
    check_primitive,
    cond,
    grad,
    jit,
    optimise,
    parse,
    primitive,
    register,
    to_onnx,
    trace,
    use_registry,
    vmap,
)
from coterie.compute import numpy as cnp
from coterie.compute.extension.row import UserPrimitive
from coterie.compute.ir import Graph
from coterie.errors import InputError, TraceError
from tests.compute.extension.primitives import CASES, bare, spread, swish, tensor_add


@pytest.fixture(autouse=True)
def registry() -> Any:
    with use_registry(Registry()) as held:
        for row in {row.name: row for row, _, _ in CASES.values()}.values():
            register(row)
        yield held


V = cnp.asarray(np.asarray([1.0, 2.0, 3.0], np.float32))


def _named(graph: Graph) -> Graph:
    return Graph(graph.inputs, graph.nodes, {f"result/{name}": value for name, value in graph.outputs.items()})


def _writes(x: Any) -> Any:
    x[0] = 0.0
    return x


def _raises(*_: Any) -> Any:
    raise KeyError("frobnicate")


WRONG_EXP = bare("e", kernel=np.exp, vjp=lambda x, y, g: g * y * 0.5)

BROKEN: list[tuple[str, Callable[[], Any], str]] = [
    (
        "wrong dtype",
        lambda: bare("b", kernel=lambda x: x.astype(np.float64))(V),
        r"returned \(float64\[3\]\), and \(float32\[3\]\)",
    ),
    ("wrong shape", lambda: bare("b", kernel=lambda x: x[:2])(V), r"float32\[2\]"),
    ("too many results", lambda: bare("b", kernel=lambda x: (x, x))(V), r"\(float32\[3\], float32\[3\]\)"),
    ("writes", lambda: bare("b", kernel=_writes)(V), r"writes to an operand \(.*test_broken_primitives.py:\d+\)"),
    (
        "fails",
        lambda: bare("b", kernel=_raises)(V),
        r"kernel failed: KeyError: 'frobnicate' \(.*test_broken_primitives.py:\d+\)",
    ),
    ("no array", lambda: bare("b", kernel=lambda x: None)(V), "object"),
    ("inference fails", lambda: bare("b", infer_shape=_raises)(V), "infer_shape failed: KeyError"),
    ("no shape", lambda: bare("b", infer_shape=lambda x: "3")(V), "not a shape"),
    ("negative shape", lambda: bare("b", infer_shape=lambda x: (-1,))(V), "not a shape"),
    ("dtype of None", lambda: bare("b", infer_dtype=lambda x: None)(V), "returned None"),
    ("no dtype", lambda: bare("b", infer_dtype=lambda x: "complex64")(V), "complex64"),
    ("two shapes", lambda: bare("b", infer_dtype=lambda x: ("float32", "float32"))(V), "one shape and one dtype"),
    (
        "lowering of another type",
        lambda: jit(lambda x: bare("b", lower=lambda v: v[:2])(x))(V),
        r"lowering makes \(float32\[2\]\)",
    ),
    ("lowering of two", lambda: jit(lambda x: bare("b", lower=lambda v: (v, v))(x))(V), "2 results instead of 1"),
    ("cotangents", lambda: _pull(bare("b", kernel=np.copy, vjp=lambda x, y, g: (g, g))), "2 cotangents for 1"),
    (
        "cotangent type",
        lambda: _pull(bare("b", kernel=np.copy, vjp=lambda x, y, g: g[:1])),
        r"float32\[1\] for the operand x",
    ),
    (
        "batch type",
        lambda: vmap(bare("b", kernel=np.copy, batch=lambda c: c.inputs[0][0]))(cnp.stack([V, V])),
        "batch rule",
    ),
    (
        "law of kernels",
        lambda: check_primitive(bare("b", kernel=np.exp, lower=lambda x: x), V),
        "kernel and its lowering differ",
    ),
    (
        "law of gradients",
        lambda: check_primitive(bare("b", kernel=np.copy, vjp=lambda x, y, g: g * 2.0), spread(3)),
        "first derivative",
    ),
    (
        "law of a single point",
        lambda: check_primitive(
            bare("b", kernel=np.exp, vjp=lambda x, y, g: g * cnp.asarray(np.exp(spread(3)))), spread(3)
        ),
        "first derivative",
    ),
    (
        "law of second order",
        lambda: check_primitive(bare("b", kernel=np.exp, vjp=lambda x, y, g: g * WRONG_EXP(x)), spread(3)),
        "second derivative",
    ),
    (
        "law of batches",
        lambda: check_primitive(
            bare("b", kernel=lambda x: x - x.max(), batch=lambda c: c.inputs[0] - cnp.max(c.inputs[0])), spread(3)
        ),
        "vmap",
    ),
]


def _pull(row: UserPrimitive) -> Any:
    return grad(lambda v: cnp.sum(row(v)))(V)


@pytest.mark.parametrize(("act", "message"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_hook_that_breaks_a_law_is_named(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=f"primitive 'b' is broken: .*{message}") as caught:
        act()
    assert caught.value.reason == "primitive_broken"


def test_an_operand_is_never_changed() -> None:
    held = np.asarray([1.0, 2.0, 3.0], np.float32)
    with pytest.raises(InputError, match="writes to an operand"):
        bare("b", kernel=_writes)(held)
    assert held.tolist() == [1.0, 2.0, 3.0] and held.flags.writeable


def shrinking(x: Any) -> Any:
    return x if x.shape[0] == 1 else cnp.concat([x[:1], recursive(x[1:])], axis=0)


recursive = primitive("test.recursive", inputs=("x",))(shrinking)
endless = primitive("test.endless", inputs=("x",))(
    type("endless", (), {"infer_shape": staticmethod(lambda x: x), "lower": staticmethod(lambda x: other(x) * 2.0)})
)
other = primitive("test.other", inputs=("x",))(
    type("other", (), {"infer_shape": staticmethod(lambda x: x), "lower": staticmethod(lambda x: endless(x) + 1.0)})
)
growing = primitive("test.growing", inputs=("x",))(
    type(
        "g",
        (),
        {
            "infer_shape": staticmethod(lambda x: ()),
            "infer_dtype": staticmethod(lambda x: x),
            "lower": staticmethod(lambda x: growing(cnp.concat([x, x], axis=0))),
        },
    )
)
in_branch = primitive("test.in_branch", inputs=("x",))(
    type(
        "b",
        (),
        {
            "infer_shape": staticmethod(lambda x: x),
            "lower": staticmethod(lambda x: cond(cnp.sum(x) > 0.0, lambda: in_branch(x), lambda: x)),
        },
    )
)


by_lowering_alone = primitive("test.alone", inputs=("x",))(lambda x: by_lowering_alone(x) * 2.0)


@pytest.mark.parametrize("row", [endless, other, growing, in_branch, by_lowering_alone], ids=lambda row: row.name)
@pytest.mark.parametrize(
    "use",
    [
        lambda row: row(V),
        lambda row: jit(lambda x: row(x))(V),
        lambda row: grad(lambda v: cnp.sum(row(v)))(V),
        lambda row: vmap(row)(cnp.stack([V, V])),
        lambda row: optimise(trace(row, V).graph),
        lambda row: to_onnx(_named(trace(row, V).graph), name="user"),
        lambda row: to_onnx(_named(trace(row, V).graph), name="user", target="cpu"),
    ],
    ids=["eager", "jit", "grad", "vmap", "optimise", "portable", "cpu"],
)
def test_a_lowering_that_never_ends_is_refused(row: UserPrimitive, use: Callable[[UserPrimitive], Any]) -> None:
    with pytest.raises(TraceError, match="never ends: .*→") as caught:
        use(row)
    assert caught.value.reason == "lowering_recursive"


def test_a_lowering_may_use_itself_with_an_attribute_that_is_equal_but_not_the_same() -> None:
    @primitive("tests.by_kind", inputs=("x",), attributes={"kind": True})
    def by_kind(x: Any, *, kind: Any) -> Any:
        return by_kind(x, kind=1) if kind is True else x * 2.0

    assert by_kind(np.ones(2)).numpy().tolist() == [2.0, 2.0]


def test_a_lowering_may_use_itself_on_smaller_operands() -> None:
    np.testing.assert_array_equal(recursive(V).numpy(), V.numpy())
    np.testing.assert_array_equal(jit(recursive, fullgraph=True)(V).numpy(), V.numpy())
    np.testing.assert_array_equal(grad(lambda v: cnp.sum(recursive(v) ** 2.0))(V).numpy(), 2 * V.numpy())


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: tensor_add(V), r"takes the operands input1, input2 and lacks \['input2'\]"),
    (lambda: tensor_add(V, V, V), "got 3"),
    (lambda: tensor_add(V, input1=V), r"got \['input1'\] twice|lacks"),
    (lambda: swish(V, gamma=2.0), "no attribute gamma"),
    (lambda: swish(V, beta=V), "attribute beta of test.swish is a Array"),
    (lambda: swish(V, beta=None), "NoneType"),
    (
        lambda: primitive("test.must", inputs=("x",), attributes={"n": ...})(lambda x, *, n: x)(V),
        "needs the attribute n",
    ),
    (lambda: primitive("add", inputs=("x",))(lambda x: x), "'add' is a primitive of the core"),
    (lambda: primitive("scan", inputs=("x",))(lambda x: x), "of the core"),
    (lambda: primitive("user", inputs=("x",))(lambda x: x), "of the core"),
    (lambda: primitive("a b", inputs=("x",)), "not a name"),
    (lambda: primitive("x(y", inputs=("x",)), "not a name"),
    (lambda: primitive("t", inputs=("x", "x")), "cannot have the names"),
    (lambda: primitive("t", inputs=("x",), outputs=()), "cannot have the names"),
    (lambda: primitive("t", inputs=("x",), attributes={"primitive": 1}), "cannot have the names"),
    (lambda: primitive("t", inputs=("x",))(3), "class of hooks or a function"),
    (lambda: primitive("t", inputs=("x",))(lambda x, y: x), "does not take 1 operands"),
    (lambda: primitive("t", inputs=("x",))(type("t", (), {"kernel": np.copy})), "neither its types nor its lowering"),
    (lambda: primitive("t", inputs=("x",))(type("t", (), {"lowering": np.copy})), "no hook lowering"),
    (lambda: primitive("t", inputs=("x",))(type("t", (), {"lower": 3})), "cannot be called"),
    (lambda: register(bare("TensorAdd")), r"'TensorAdd' is already registered by .*test_broken_primitives.py:\d+"),
    (lambda: parse('input "x" %0: float32[3]\n%1: float32[3] = test.none(%0) {}\noutput "y" %1\n'), "load_plugins"),
    (lambda: parse('input "x" %0: float32[3]\n%1: float32[3] = user(%0) {"primitive": 1}\n'), "called primitive"),
    (lambda: parse('input "x" %0: float32[3]\n%1: float32[3] = user(%0) {}\noutput "y" %1\n'), "wrong attributes"),
    (lambda: parse('input "x" %0: float32[3]\n%1: float32[3] = TensorAdd(%0) {}\noutput "y" %1\n'), "takes 2 operands"),
    (lambda: parse('input "x" %0: float32[3]\n%1: float32[4] = test.swish(%0) {"beta": 1.0}\n'), r"not float32\[4\]"),
    (
        lambda: parse('input "x" %0: float32[3]\n%1: float32[3] = test.swish(%0) {"b": 1.0}\n'),
        "wrong attributes|broken",
    ),
]


@pytest.mark.parametrize(("act", "message"), CALLS, ids=[c[1][:24] for c in CALLS])
def test_a_wrong_definition_call_or_text_is_refused(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        act()
