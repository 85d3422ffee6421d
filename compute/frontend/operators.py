"""What rewritten functions call: on numbers they do what Python does, on traced arrays they record control flow.

Variables cross a branch or a loop by position. Those that hold arrays, numbers or trees of them become operands; others
(a string, a module, a name that has no value yet) must not be changed by a traced choice or loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.control.bind import bind_structured
from coterie.compute.control.functions import closed, scan, while_loop
from coterie.compute.numpy import elementwise, manipulation
from coterie.compute.source import user_source
from coterie.compute.trace import Traced, trace_flat
from coterie.errors import TraceError

State: TypeAlias = tuple[Any, ...]
Branch: TypeAlias = Callable[..., Any]


class Undefined:
    """A local name before its first value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _no_value(self, *operands: Any) -> NoReturn:
        raise UnboundLocalError(
            f"{self._name!r} has no value here: give it one before the `if` or the loop that assigns it."
        )

    __getattr__ = __getitem__ = __call__ = __iter__ = __len__ = __bool__ = __float__ = __int__ = __index__ = _no_value
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __neg__ = __abs__ = __invert__ = _no_value
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _no_value
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = _no_value


def is_traced(x: Any) -> bool:
    """Whether a decision on this value has to be part of the graph."""
    return isinstance(x, Array) and x.recorder is not None


def if_(test: Any, true: Branch, false: Branch, state: State, names: Sequence[str]) -> State:
    """The variables after an if statement."""
    if not is_traced(test):
        return (true if test else false)(*state)
    outcomes = [_Outcome(branch, state, names) for branch in (true, false)]
    traces = [trace_flat(outcome, (), ()) for outcome in outcomes]
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
        elif isinstance(old, Undefined):
            after.append(old)  # made in one branch only: it has no value afterwards
        else:
            _refuse(f"`if` on a traced array gives {name!r} an array in one branch and something else in the other")
    return tuple(after)


def return_if(test: Any, true: Branch, false: Branch, state: State) -> Any:
    """What a function returns whose rest depends on an if statement."""
    if not is_traced(test):
        return (true if test else false)(*state)
    return _either(test, lambda: true(*state), lambda: false(*state), "return")


def choose(test: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    """``a if test else b``."""
    if not is_traced(test):
        return true() if test else false()
    return _either(test, true, false, "a value of `if` and `else`")


def while_(check: Branch, step: Branch, state: State, names: Sequence[str]) -> State:
    """The variables after a while statement. A test that becomes a traced array on the way ends Python's own loop."""
    while True:
        test = check(*state)
        if is_traced(test):
            return _traced_while(check, step, state, names)
        if not test:
            return state
        state = step(*state)


def for_(iterable: Any, step: Branch, state: State, names: Sequence[str], stop: int | None) -> State:
    """The variables after a for statement. Loops over what Python knows are written out; over a traced array and over a
    range up to one they are not. stop: which variable says that a break was met.
    """
    if isinstance(iterable, TracedRange):
        return _for_range(iterable, step, state, names, stop)
    if is_traced(iterable):
        carried = _Carried(state, names, lambda *s: step(iterable[0], *s))
        found, _ = scan(lambda c, x: (carried.step(c, lambda *s: step(x, *s)), None), carried.start, iterable)
        return carried.state(found)
    for item in iterable:
        state = step(item, *state)
        if stop is not None and not is_traced(state[stop]) and state[stop]:
            break
    return state


@dataclass(frozen=True)
class TracedRange:
    """range() with a traced bound."""

    start: Any
    stop: Any
    step: int


def range_(python: Callable[..., Any], *bounds: Any) -> Any:
    """range() in a for statement."""
    if python is not range or not any(is_traced(bound) for bound in bounds):
        return python(*bounds)
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if not isinstance(step, int) or step == 0:
        _refuse("range() on traced arrays has a step that is no Python integer other than 0")
    return TracedRange(start, stop, step)


def and_(*values: Callable[[], Any]) -> Any:
    """``a and b``."""
    return _boolean(values, True)


def or_(*values: Callable[[], Any]) -> Any:
    """``a or b``."""
    return _boolean(values, False)


def not_(value: Any) -> Any:
    """``not a``."""
    return elementwise.logical_not(_bool(value)) if is_traced(value) else not value


def plain_test(test: Any, reason: str) -> Any:
    """The test of a statement that stays Python."""
    if is_traced(test):
        _refuse(f"a test on a traced array stands over {reason}")
    return test


def plain_iterable(iterable: Any, reason: str) -> Any:
    """The iterable of a loop that stays Python."""
    return iterable


def _boolean(values: Sequence[Callable[[], Any]], go_on: bool) -> Any:
    result: Any = go_on
    for index, value in enumerate(values):
        found = value()
        if is_traced(result):
            join = elementwise.logical_and if go_on else elementwise.logical_or
            result = join(_bool(result), _bool(found))
        else:
            result = found
            if not is_traced(result) and index < len(values) - 1 and bool(result) != go_on:
                return result
    return result


def _bool(value: Any) -> Array:
    array = as_array(value)
    return array if array.type.dtype == "bool" else elementwise.not_equal(array, 0)


def _refuse(what: str) -> NoReturn:
    raise TraceError(
        f"{user_source()}: {what}, which a graph cannot express.",
        hint="Give every name an array of one type beforehand, or write it with where(), cond, while_loop or scan.",
    )


def _is_dynamic(value: Any) -> bool:
    leaves = tree.flatten(value)[0]
    return bool(leaves) and all(isinstance(leaf, (Array, bool, int, float)) for leaf in leaves)


class _Outcome:
    """A branch as a function to trace; afterwards, which variables it made arrays, and what the others are."""

    def __init__(self, branch: Branch, state: State, names: Sequence[str]) -> None:
        self._branch = branch
        self._state = state
        self._names = names
        self.dynamic: dict[str, Any] = {}
        self.static: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        for name, value in zip(self._names, self._branch(*self._state), strict=True):
            (self.dynamic if _is_dynamic(value) else self.static)[name] = value
        return dict(self.dynamic)


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
            _refuse(f"`if` on a traced array gives {name!r} different trees in its branches")
    for path, a, b in zip(
        first.out_structure.paths(), first.graph.outputs.values(), second.graph.outputs.values(), strict=True
    ):
        if a.type != b.type:
            _refuse(f"`if` on a traced array gives {path!r} the type {a.type} in one branch and {b.type} in the other")
    (true, false), captures = closed(traces)
    choice = manipulation.reshape(_bool(test), ()) if as_array(test).size == 1 else _bool(test)
    results = bind_structured("cond", [choice, *captures], {"true": true, "false": false})
    return tree.unflatten(first.out_structure, results)


def _either(test: Any, true: Callable[[], Any], false: Callable[[], Any], what: str) -> Any:
    def single(value: Callable[[], Any]) -> Branch:
        return lambda: (value(),)

    outcomes = [_Outcome(single(value), (), (what,)) for value in (true, false)]
    traces = [trace_flat(outcome, (), ()) for outcome in outcomes]
    if all(outcome.dynamic for outcome in outcomes):
        return _select(test, traces, (what,))[what]
    values = [outcome.static.get(what, outcome) for outcome in outcomes]
    if values[0] is not values[1]:
        _refuse(f"{what} on a traced array is an array in one branch and something else in the other")
    return values[0]


class _Carried:
    """The variables that a traced loop carries: those that hold arrays before it. The others are as they were."""

    def __init__(self, state: State, names: Sequence[str], step: Branch) -> None:
        self._names = names
        self._state = state
        self._dynamic = [_is_dynamic(value) for value in state]
        self.start: dict[str, Any] = self._picked(state)
        # A Python number takes the dtype that the loop gives it.
        after = trace_flat(lambda: self._picked(step(*state)), (), ())
        types = [value.type for value in after.graph.outputs.values()]
        leaves, structure = tree.flatten(self.start)
        if structure == after.out_structure:
            fitted = [
                as_array(leaf, type_.dtype) if isinstance(leaf, (bool, int, float)) else leaf
                for leaf, type_ in zip(leaves, types, strict=True)
            ]
            self.start = tree.unflatten(structure, fitted)

    def _picked(self, state: State) -> dict[str, Any]:
        rows = zip(self._names, state, self._dynamic, strict=True)
        return {name: value for name, value, is_dynamic in rows if is_dynamic}

    def state(self, carry: dict[str, Any]) -> State:
        """All variables, with those of a carry."""
        return tuple(carry.get(name, old) for name, old in zip(self._names, self._state, strict=True))

    def step(self, carry: dict[str, Any], step: Branch) -> dict[str, Any]:
        """The carry after one step."""
        new = step(*self.state(carry))
        for name, before, after, is_dynamic in zip(self._names, self._state, new, self._dynamic, strict=True):
            if is_dynamic and not _is_dynamic(after):
                _refuse(f"a loop on traced arrays turns {name!r} into something else than an array")
            if not is_dynamic and after is not before and not isinstance(before, Undefined):
                _refuse(f"a loop on traced arrays changes {name!r}, which is no array before it")
        return self._picked(new)


def _traced_while(check: Branch, step: Branch, state: State, names: Sequence[str]) -> State:
    carried = _Carried(state, names, step)
    found = while_loop(
        lambda c: _scalar(_bool(check(*carried.state(c)))), lambda c: carried.step(c, step), carried.start
    )
    return carried.state(found)


def _scalar(test: Array) -> Array:
    return manipulation.reshape(test, ()) if test.size == 1 else test


def _for_range(bounds: TracedRange, step: Branch, state: State, names: Sequence[str], stop: int | None) -> State:
    start, end = (_scalar(as_array(bound)) for bound in (bounds.start, bounds.stop))
    counter = "counter of the loop"

    def check(i: Any, *rest: Any) -> Any:
        inside = i < end if bounds.step > 0 else i > end
        return inside if stop is None else elementwise.logical_and(inside, elementwise.logical_not(_bool(rest[stop])))

    def advance(i: Any, *rest: Any) -> State:
        return (i + bounds.step, *step(i, *rest))

    dtype = end.type.dtype if is_traced(end) else start.type.dtype
    first = manipulation.reshape(as_array(start, dtype), ())
    return _traced_while(check, advance, (first, *state), (counter, *names))[1:]
