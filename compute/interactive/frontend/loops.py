"""Loops: over what Python knows, Python's own; on traced arrays ``while_loop`` and ``scan``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.compute.array import as_array
from coterie.compute.control.functions import scan, while_loop
from coterie.compute.interactive.frontend.branches import Branch, State
from coterie.compute.interactive.frontend.values import (
    Undefined,
    Unset,
    deciding,
    fitted,
    is_dynamic,
    is_traced,
    refuse,
    single,
    truth,
)
from coterie.compute.ir import Type
from coterie.compute.numpy import elementwise, manipulation
from coterie.compute.trace import trace_flat

# After how many items an iterator, such as itertools.count(), is taken to end by a break alone.
_ENDLESS = 1000


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
    if is_traced(iterable) and iterable.shape and not len(iterable):
        return state
    if is_traced(iterable):
        carried = _Carried(state, names, lambda *s: step(iterable[0], *s))
        found, _ = scan(lambda c, x: (carried.step(c, lambda *s: step(x, *s)), None), carried.start, iterable)
        return carried.state(found)
    for count, item in enumerate(iterable):
        state = step(item, *state)
        if stop is None:
            continue
        if is_traced(state[stop]):
            if count == _ENDLESS and not hasattr(iterable, "__len__"):
                refuse("a loop over an iterator without a length is left on a traced array only")
        elif state[stop]:
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
        refuse("range() on traced arrays has a step that is no Python integer other than 0")
    return TracedRange(start, stop, step)


class _Carried:
    """The variables that a traced loop carries: those that hold arrays before it, and the result of a return in it. The
    others are as they were.
    """

    def __init__(self, state: State, names: Sequence[str], step: Branch) -> None:
        self._names = names
        self._state = _with_results(state, step)
        self._dynamic = [is_dynamic(value) for value in self._state]
        self.start: dict[str, Any] = self._picked(self._state)
        # A Python number takes the dtype that the loop gives it.
        with deciding():
            after = trace_flat(lambda: self._picked(step(*self._state)), (), ())
        self.start = fitted(self.start, after.out_structure, [v.type for v in after.graph.outputs.values()])

    def _picked(self, state: State) -> dict[str, Any]:
        rows = zip(self._names, state, self._dynamic, strict=True)
        return {name: value for name, value, carried in rows if carried}

    def state(self, carry: dict[str, Any]) -> State:
        """All variables, with those of a carry."""
        return tuple(carry.get(name, old) for name, old in zip(self._names, self._state, strict=True))

    def step(self, carry: dict[str, Any], step: Branch) -> dict[str, Any]:
        """The carry after one step."""
        with deciding():
            new = step(*self.state(carry))
        for name, before, after, carried in zip(self._names, self._state, new, self._dynamic, strict=True):
            if carried and not is_dynamic(after):
                refuse(f"a loop on traced arrays turns {name!r} into something else than an array")
            if not carried and after is not before:
                if isinstance(before, Unset):
                    refuse("a loop on traced arrays returns something that is no array")
                if not isinstance(before, Undefined):
                    refuse(f"a loop on traced arrays changes {name!r}, which is no array before it")
        return self._picked(new)


def _with_results(state: State, step: Branch) -> State:
    """The variables with zeros for results that are not set, in the form in which a step sets them."""
    places = [index for index, value in enumerate(state) if isinstance(value, Unset)]
    if not places:
        return state
    made: dict[str, Any] = {}

    def results() -> dict[str, Any]:
        with deciding():
            after = step(*state)
        made.update({str(index): after[index] for index in places if is_dynamic(after[index])})
        return dict(made)

    traced = trace_flat(results, (), ())
    types = iter(value.type for value in traced.graph.outputs.values())
    filled = list(state)
    for key, structure in zip(traced.out_structure.keys, traced.out_structure.children, strict=True):
        own: list[Type] = [next(types) for _ in range(structure.leaves)]
        filled[int(key)] = fitted(state[int(key)], structure, own)
    return tuple(filled)


def _traced_while(check: Branch, step: Branch, state: State, names: Sequence[str]) -> State:
    carried = _Carried(state, names, step)
    found = while_loop(
        lambda c: single(truth(check(*carried.state(c)))), lambda c: carried.step(c, step), carried.start
    )
    return carried.state(found)


def _for_range(bounds: TracedRange, step: Branch, state: State, names: Sequence[str], stop: int | None) -> State:
    start, end = (single(as_array(bound)) for bound in (bounds.start, bounds.stop))
    counter = "counter of the loop"

    def check(i: Any, *rest: Any) -> Any:
        inside = i < end if bounds.step > 0 else i > end
        return inside if stop is None else elementwise.logical_and(inside, elementwise.logical_not(truth(rest[stop])))

    def advance(i: Any, *rest: Any) -> State:
        return (i + bounds.step, *step(i, *rest))

    dtype = end.type.dtype if is_traced(end) else start.type.dtype
    first = manipulation.reshape(as_array(start, dtype), ())
    return _traced_while(check, advance, (first, *state), (counter, *names))[1:]
