"""Choices: on numbers what Python does, on traced arrays a ``cond``."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from coterie.compute import tree
from coterie.compute.array import Array, as_array, bind_all
from coterie.compute.control.functions import closed
from coterie.compute.interactive.frontend.values import (
    Undefined,
    Unset,
    deciding,
    fitted,
    is_decided_by_host,
    is_dynamic,
    is_traced,
    refuse,
    single,
    truth,
)
from coterie.compute.ir import FLOATS, Type
from coterie.compute.trace import Traced, trace_flat

State: TypeAlias = tuple[Any, ...]
Branch: TypeAlias = Callable[..., Any]
Form: TypeAlias = tuple[tree.Structure, list[Type]]


def if_(test: Any, true: Branch, false: Branch, state: State, names: Sequence[str]) -> State:
    """The variables after an if statement."""
    if not is_traced(test) and not is_decided_by_host(test):
        return (true if test else false)(*state)
    outcomes = [_Outcome(branch, state, names) for branch in (true, false)]
    traces = _alike(test, outcomes)
    kept = [name for name in names if all(name in outcome.dynamic for outcome in outcomes)]
    values = _select(test, [_only(traced, kept) for traced in traces], kept)
    after: list[Any] = []
    for name, old in zip(names, state, strict=True):
        if name in kept:
            after.append(values[name])
            continue
        new = [outcome.static.get(name, outcome) for outcome in outcomes]
        if new[0] is new[1]:
            after.append(new[0])
        elif isinstance(old, Unset) and not all(isinstance(value, Unset) for value in new):
            refuse("a return in a loop, decided on a traced array, gives something that is no array")
        elif isinstance(old, Undefined):
            # No value afterwards: it has one in one branch only, or things of which a graph cannot choose one.
            both = not any(isinstance(value, Undefined) for value in new)
            why = "a traced `if` gives it things that are no arrays; choose between arrays" if both else None
            after.append(Undefined(name, why) if why else old)
        else:
            refuse(f"`if` on a traced array gives {name!r} an array in one branch and something else in the other")
    return tuple(after)


def return_if(test: Any, true: Branch, false: Branch, state: State) -> Any:
    """What a function returns whose rest depends on an if statement."""
    if not is_traced(test) and not is_decided_by_host(test):
        return (true if test else false)(*state)
    return _either(test, lambda: true(*state), lambda: false(*state), "return")


def choose(test: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    """``a if test else b``."""
    if not is_traced(test) and not is_decided_by_host(test):
        return true() if test else false()
    return _either(test, true, false, "a value of `if` and `else`")


class _Outcome:
    """A branch as a function to trace; afterwards, which variables it made arrays, and what the others are. forms: in
    which form variables are wanted.
    """

    def __init__(self, branch: Branch, state: State, names: Sequence[str]) -> None:
        self._branch = branch
        self._state = state
        self._names = names
        self.forms: dict[str, Form] = {}
        self.dynamic: dict[str, Any] = {}
        self.static: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        self.dynamic, self.static = {}, {}
        with deciding():
            after = self._branch(*self._state)
        for name, value in zip(self._names, after, strict=True):
            value = fitted(value, *self.forms[name]) if name in self.forms else value
            (self.dynamic if is_dynamic(value) else self.static)[name] = value
        return dict(self.dynamic)

    def require_arrays(self) -> None:
        """Refuse numbers of Python's, which chosen by a graph would no longer take the dtype of the array beside them:
        the function gave them, uncompiled, to whatever dtype there is.
        """
        for name, value in self.dynamic.items():
            if not all(isinstance(leaf, Array) for leaf in tree.flatten(value)[0]):
                refuse(f"`if` on what a line of Python gives makes {_told(name)} a number of Python's")


def _alike(test: Any, outcomes: Sequence[_Outcome]) -> list[Traced]:
    """Both branches traced, once more where a number of one has to take the dtype that the other gives, or a result is
    set in one only.
    """
    traces = [trace_flat(outcome, (), ()) for outcome in outcomes]
    if is_decided_by_host(test):
        for outcome in outcomes:
            outcome.require_arrays()
    wanted = [_forms(outcomes[i], outcomes[1 - i], traces[1 - i]) for i in (0, 1)]
    for index, (outcome, forms) in enumerate(zip(outcomes, wanted, strict=True)):
        if forms:
            outcome.forms = forms
            traces[index] = trace_flat(outcome, (), ())
    return traces


def _forms(outcome: _Outcome, other: _Outcome, traced: Traced) -> dict[str, Form]:
    types = iter(value.type for value in traced.graph.outputs.values())
    found: dict[str, Form] = {}
    for name, structure in zip(traced.out_structure.keys, traced.out_structure.children, strict=True):
        form = structure, [next(types) for _ in range(structure.leaves)]
        mine = outcome.dynamic.get(name, outcome.static.get(name))
        theirs = tree.flatten(other.dynamic[name])[0]
        if isinstance(mine, Unset) or (name in outcome.dynamic and _differ(tree.flatten(mine)[0], theirs, form[1])):
            found[name] = form
    return found


def _differ(mine: Sequence[Any], theirs: Sequence[Any], types: Sequence[Type]) -> bool:
    """Whether a number here should take the dtype of there: of an array, or of a float beside an integer."""
    if len(mine) != len(theirs):
        return False
    pairs = list(zip(mine, theirs, types, strict=True))
    numbers = [(a, b, t) for a, b, t in pairs if isinstance(a, (bool, int, float))]
    return any(
        as_array(a).type.dtype != t.dtype
        and (not isinstance(b, (bool, int, float)) or (t.dtype in FLOATS and not isinstance(a, bool)))
        for a, b, t in numbers
    )


def _only(traced: Traced, names: Sequence[str]) -> Traced:
    """A trace of a dict, with some of its items."""
    structure = traced.out_structure
    outputs = iter(traced.graph.outputs.items())
    kept: list[tuple[str, Any]] = []
    for key, child in zip(structure.keys, structure.children, strict=True):
        items = [next(outputs) for _ in range(child.leaves)]
        kept += items if key in names else []
    shape = tree.Structure(
        "dict",
        tuple(k for k in structure.keys if k in names),
        tuple(child for key, child in zip(structure.keys, structure.children, strict=True) if key in names),
    )
    graph = type(traced.graph)(traced.graph.inputs, traced.graph.nodes, dict(kept))
    return Traced(graph=graph, in_structure=traced.in_structure, out_structure=shape, captures=traced.captures)


def _select(test: Any, traces: Sequence[Traced], names: Sequence[str]) -> dict[str, Any]:
    """The variables of the chosen branch."""
    if not names:
        return {}
    first, second = traces
    for name, mine, other in zip(
        first.out_structure.keys, first.out_structure.children, second.out_structure.children, strict=True
    ):
        if mine != other:
            refuse(f"`if` on a traced array gives {_told(name)} different trees in its branches")
    for path, a, b in zip(
        first.out_structure.paths(), first.graph.outputs.values(), second.graph.outputs.values(), strict=True
    ):
        if a.type != b.type:
            told = _told(path)
            refuse(f"`if` on a traced array gives {told} the type {a.type} in one branch and {b.type} in the other")
    (true, false), captures = closed(traces)
    choice = single(truth(test))
    results = bind_all("cond", [choice, *captures], {"true": true, "false": false})
    return tree.unflatten(first.out_structure, results)


def _told(name: str) -> str:
    return "the returned value" if name.startswith("result_") and name.endswith("__") else repr(name)


def _either(test: Any, true: Callable[[], Any], false: Callable[[], Any], what: str) -> Any:
    def alone(value: Callable[[], Any]) -> Branch:
        return lambda: (value(),)

    outcomes = [_Outcome(alone(value), (), (what,)) for value in (true, false)]
    traces = _alike(test, outcomes)
    if all(outcome.dynamic for outcome in outcomes):
        return _select(test, traces, (what,))[what]
    values = [outcome.static.get(what, outcome) for outcome in outcomes]
    if values[0] is not values[1]:
        refuse(f"{what} on a traced array gives something that is no array, or is one in one branch only")
    return values[0]
