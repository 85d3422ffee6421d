"""One switch for all of it: every primitive's case, and its gradient, in both modes (D1, D2)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import tree
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.interactive.jit import jit
from coterie.compute.interactive.mode import use_mode
from tests.compute.core.cases import CASES, Case, apply, floats, single

ALL = [pytest.param(name, c, id=f"{name}-{i}") for name, cases in CASES.items() for i, c in enumerate(cases)]


def program(name: str, c: Case) -> Callable[..., Any]:
    """The primitive, and with it the gradients of a sum over its result where it has any."""
    fn, wanted = apply(name, c), floats(c)

    def both(*operands: Array) -> Any:
        result = fn(*operands)
        if not wanted or not result.type.is_float:
            return result
        total, gradients = value_and_grad(lambda *xs: cnp.sum(cnp.sin(0.1 * fn(*xs))), tuple(wanted))(*operands)
        return result, total, gradients

    return both


@pytest.mark.capability("D1", "D2")
@pytest.mark.parametrize(("name", "c"), ALL)
def test_d1_every_program_gives_the_same_in_both_modes(name: str, c: Case) -> None:
    c = single(c)
    compiled = jit(program(name, c), fullgraph=True)
    with use_mode("eager"):
        eager = compiled(*map(Array, c.operands))
        assert compiled.compilations == 0
    graph = compiled(*c.operands)
    assert compiled.compilations == 1
    left, structure = tree.flatten(eager)
    right, same = tree.flatten(graph)
    assert structure == same
    for a, b in zip(left, right, strict=True):
        assert a.type == b.type
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=2e-5, atol=5e-6)
