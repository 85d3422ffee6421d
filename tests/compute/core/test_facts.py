"""The facts that passes go by are all there, and true: each is held against what the primitive evaluates to."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from itertools import chain
from typing import Any

import numpy as np
import pytest

from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.primitives import facts
from coterie.compute.primitives.facts import Facts
from coterie.compute.primitives.row import Primitive
from coterie.compute.table import PLAIN, PRIMITIVES
from tests.compute.core.cases import CASES, Case, apply

KINDS: tuple[Callable[..., Facts], ...] = (facts.elementwise, facts.moving, facts.computing)


@pytest.mark.parametrize("kind", [Facts, Primitive])
def test_a_row_has_no_column_with_a_value_that_nobody_chose(kind: Any) -> None:
    assert [field.name for field in fields(kind) if (field.default, field.default_factory) != (MISSING, MISSING)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_leaves_a_column_out_is_refused(kind: Callable[..., Facts]) -> None:
    asked = signature(kind).parameters
    assert {each.kind for each in asked.values()} == {Parameter.KEYWORD_ONLY}
    made = kind(**dict.fromkeys(asked, "chosen"))
    assert all(getattr(made, name) == "chosen" for name in asked)
    for name in asked:
        with pytest.raises(TypeError, match=f"missing .*'{name}'"):
            kind(**dict.fromkeys(asked.keys() - {name}, "chosen"))


def results(name: str, *, operands: Callable[[Case], tuple[NDArray, ...]] = lambda c: c.operands) -> Iterator[Any]:
    """Each case of a primitive, and what comes of it, perhaps with other operands."""
    for c in CASES[name]:
        yield c, apply(name, c)(*map(Array, operands(c))).numpy()


def by_element(c: Case, name: str) -> bool:
    """Whether each element of the result is that of the elements which stand in its place."""
    found = apply(name, c)(*map(Array, c.operands)).numpy()
    try:
        full = np.broadcast_arrays(*c.operands)
    except ValueError:
        return False
    if found.shape != full[0].shape:
        return False
    alone = [apply(name, c)(*(Array(x[place]) for x in full)).numpy() for place in np.ndindex(found.shape)]
    return all(
        one.shape == () and one == found[place] for one, place in zip(alone, np.ndindex(found.shape), strict=True)
    )


def answered(c: Case, name: str) -> bool:
    """Whether it is a function of the elements; what cannot take them alone is none."""
    try:
        return by_element(c, name)
    except Exception:  # whatever refuses single elements
        return False


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_elementwise_is_what_needs_the_elements_in_its_place_alone(name: str) -> None:
    row = PRIMITIVES[name].facts
    if row.category == "dataflow" and not row.elementwise:  # hands its operand on
        assert all(not c.operands or np.array_equal(found, c.operands[0]) for c, found in results(name))
        return
    assert all(answered(c, name) for c in CASES[name]) == row.elementwise


@pytest.mark.parametrize("name", sorted(PLAIN - {"constant"}))
def test_a_view_is_what_leaves_every_element_in_its_place(name: str) -> None:
    same = [np.array_equal(found.ravel(), c.operands[0].ravel()) for c, found in results(name)]
    assert all(same) == PRIMITIVES[name].facts.view


@pytest.mark.parametrize(
    "name", [name for name, row in PRIMITIVES.items() if row.facts.flops is facts.nothing and name in PLAIN]
)
def test_what_has_no_operations_only_places_elements(name: str) -> None:
    for c, found in results(name):
        given = [c.attributes.get("value", 0.0), *c.operands]
        assert np.isin(found, np.concatenate([np.ravel(x) for x in given])).all()


@pytest.mark.parametrize("name", [name for name, row in PRIMITIVES.items() if not row.facts.rounds])
def test_what_is_not_rounded_gives_elements_of_its_operands_or_zero(name: str) -> None:
    for c, found in results(name):
        assert np.isin(found, np.concatenate([[0.0], *map(np.ravel, c.operands)])).all()


def zeroed(*indices: int) -> Callable[[Case], tuple[NDArray, ...]]:
    """The operands, those of these positions zeros."""
    return lambda c: tuple(np.zeros_like(x) if i in indices else x for i, x in enumerate(c.operands))


@pytest.mark.parametrize("name", [name for name, row in PRIMITIVES.items() if row.facts.zero != "no"])
def test_zeros_make_zeros_where_the_row_says_so(name: str) -> None:
    ways = [zeroed(*range(9))] if PRIMITIVES[name].facts.zero == "all" else [zeroed(0, 2), zeroed(1, 2)]
    for c, found in chain.from_iterable(results(name, operands=way) for way in ways):
        assert not found.any() or c.attributes.get("value", 0.0) != 0.0


@pytest.mark.parametrize("name", [name for name, row in PRIMITIVES.items() if row.facts.monotone])
def test_a_monotone_function_keeps_the_order_of_all_numbers(name: str) -> None:
    line = np.sort(
        np.concatenate([np.linspace(-200, 200, 4001), np.geomspace(1, 1e30, 50), -np.geomspace(1, 1e30, 50)])
    )
    found = apply(name, Case((line,)))(Array(line)).numpy()
    assert (np.diff(found[np.isfinite(found)]) >= 0).all() and not np.isnan(found).any()


@pytest.mark.parametrize("name", [name for name, row in PRIMITIVES.items() if row.facts.nonnegative])
def test_what_is_never_negative_is_not(name: str) -> None:
    assert all((found[~np.isnan(found)] >= 0).all() for _, found in results(name))


def test_products_begin_in_half_precision_and_derivatives_do_not() -> None:
    begins = {name for name, row in PRIMITIVES.items() if row.facts.half == "begins"}
    assert begins == {name for name, row in PRIMITIVES.items() if row.facts.zero == "any"} - {
        "multiply",
        *(name for name, row in PRIMITIVES.items() if row.facts.derivative),
    }
