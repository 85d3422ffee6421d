"""One table of rules serves everything: random programs give the same eagerly and compiled; a gradient rule is the same
one wherever gradients are taken; every primitive has every rule.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, pullback_graph, vjp
from coterie.compute.batching import vmap
from coterie.compute.interactive.jit import jit
from coterie.compute.interactive.mode import use_mode
from coterie.compute.ir import NDArray
from coterie.compute.primitives.row import Call, Cotangents, Primitive, Pullback, no_gradients
from coterie.compute.table import PLAIN, PRIMITIVES
from tests.compute.core.cases import CASES, apply, floats
from tests.compute.core.programs import Step, operands, run, steps


@pytest.mark.capability("A5")
@settings(max_examples=200)
@given(program=steps())
def test_two_hundred_random_programs_give_the_same_eagerly_and_compiled(program: list[Step]) -> None:
    def last(*arrays: Array) -> tuple[Array, Array]:
        made = run(program, arrays)
        return made[-1], made[len(made) // 2]

    compiled = jit(last)
    for seed in (0, 1):
        given_arrays = operands(seed)
        with use_mode("eager"):
            eager = compiled(*map(Array, given_arrays))
        assert compiled.compilations <= seed
        for mine, theirs in zip(compiled(*given_arrays), eager, strict=True):
            assert mine.type == theirs.type
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-4, atol=2e-5)
    assert compiled.compilations == 1


@settings(max_examples=40)
@given(program=steps())
def test_gradients_of_random_programs_are_the_same_eagerly_and_compiled(program: list[Step]) -> None:
    gradient = grad(lambda *arrays: cnp.sum(cnp.tanh(run(program, arrays)[-1])), (0, 1, 2, 3))
    arrays = operands()
    for mine, theirs in zip(jit(gradient)(*arrays), gradient(*map(Array, arrays)), strict=True):
        scale = max(1.0, float(np.abs(theirs.numpy()).max()))
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-4 * scale)


WAYS: dict[str, Callable[[Callable[[Array], Array], Array], Array]] = {
    "eager": lambda f, x: grad(lambda v: cnp.sum(f(v)))(x),
    "compiled": lambda f, x: jit(grad(lambda v: cnp.sum(f(v))))(x),
    "by operation": lambda f, x: vjp(f, x)[1](cnp.ones_like(x))[0],
    "for each example": lambda f, x: vmap(grad(f))(x),
    "of a compiled function": lambda f, x: grad(lambda v: cnp.sum(jit(f)(v)))(x),
}


@pytest.mark.capability("C1")
@pytest.mark.parametrize("way", WAYS)
def test_one_gradient_rule_serves_every_way_of_differentiating(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Array(np.linspace(-1.0, 1.0, 5).astype(np.float32))
    before = WAYS[way](cnp.tanh, x).numpy()
    np.testing.assert_allclose(before, 1 - np.tanh(x.numpy()) ** 2, rtol=1e-5)

    def doubled(call: Call, cotangents: Cotangents, wanted: Sequence[bool], pullback: Pullback) -> Cotangents:
        return [None if g is None else g * 7.0 for g in cotangents]

    monkeypatch.setitem(PRIMITIVES, "tanh", replace(PRIMITIVES["tanh"], gradient=doubled))
    np.testing.assert_allclose(WAYS[way](cnp.tanh, x).numpy(), np.full(5, 7.0), rtol=1e-6)


@pytest.mark.capability("D8")
def test_every_operation_has_a_category_and_every_rule() -> None:
    assert {row.facts.category for row in PRIMITIVES.values()} == {"dataflow", "tensor", "nn", "control"}
    for name, row in PRIMITIVES.items():
        assert row.name == name
        for field in fields(Primitive):
            assert field.name in ("name", "facts") or callable(getattr(row, field.name)), (name, field.name)
    assert set(PRIMITIVES) - PLAIN == {"call", "checkpoint", "cond", "custom", "scan", "user", "while"}
    assert 40 <= len(PLAIN) <= 60  # a closed core


@pytest.mark.capability("D8")
@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_primitive_without_a_gradient_says_so_and_the_others_have_one(name: str) -> None:
    """The explicit "none" is the rule no_gradients; everything else answers for every float operand."""
    row = PRIMITIVES[name]
    for c in CASES[name]:
        result = apply(name, c)(*map(Array, c.operands))
        for index in floats(c):
            call = Call(tuple(map(Array, c.operands)), (result,), c.attributes)
            if row.gradient is no_gradients or not result.type.is_float:
                continue
            wanted = [i == index for i in range(len(c.operands))]
            part = row.gradient(call, [cnp.ones_like(result)], wanted, pullback_graph)[index]
            assert part is None or part.type == call.inputs[index].type
            if name not in WITHOUT:
                assert part is not None, (name, index)
    told = row.gradient is no_gradients
    assert told == (name in WITHOUT), name


# Results that do not change with the operands, or change in steps; constants have no operands.
WITHOUT = frozenset("constant stop_gradient floor floor_divide equal greater top_k".split())

IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) - 20.0


@pytest.mark.capability("B2")
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_padding_never_wins_a_maximum_and_counts_as_zero_in_a_mean(way: str) -> None:
    """All elements are negative: a pad of 0 would win every window that it is in."""

    def both(x: Array) -> tuple[Array, Array]:
        return ops.max_pool2d(x, 3, stride=2, padding=1), ops.avg_pool2d(x, 3, stride=2, padding=1)

    greatest, mean = jit(both)(IMAGE) if way == "compiled" else both(Array(IMAGE))
    assert padded(IMAGE, -np.inf).max(axis=(2, 3)).tolist() == greatest.numpy()[0, 0].tolist()
    np.testing.assert_allclose(mean.numpy()[0, 0], padded(IMAGE, 0.0).mean(axis=(2, 3)), rtol=1e-6)


def padded(image: NDArray, value: float) -> NDArray:
    """The windows [2, 2, 3, 3] of 3 by 3 elements, two apart, of an image with one row and column around it."""
    around = np.pad(image[0, 0], 1, constant_values=value)
    return np.lib.stride_tricks.sliding_window_view(around, (3, 3))[::2, ::2]
