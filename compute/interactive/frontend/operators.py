"""What rewritten functions call: on numbers they do what Python does, on traced arrays they record control flow.

Variables cross a branch or a loop by position. Those that hold arrays, numbers or trees of them become operands; others
(a string, a module, a name that has no value yet) must not be changed by a traced choice or loop.
"""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.compute.array import Array
from coterie.compute.interactive.frontend.branches import choose as choose
from coterie.compute.interactive.frontend.branches import if_ as if_
from coterie.compute.interactive.frontend.branches import return_if as return_if
from coterie.compute.interactive.frontend.loops import for_ as for_
from coterie.compute.interactive.frontend.loops import range_ as range_
from coterie.compute.interactive.frontend.loops import while_ as while_
from coterie.compute.interactive.frontend.values import Undefined as Undefined
from coterie.compute.interactive.frontend.values import Unset as Unset
from coterie.compute.interactive.frontend.values import augmented as augmented
from coterie.compute.interactive.frontend.values import is_traced, refuse, truth
from coterie.compute.interactive.witness import Body, Witness
from coterie.compute.numpy import elementwise
from coterie.compute.recorder import RECORDER, refused
from coterie.compute.source import user_source
from coterie.errors import TraceError


def and_(*values: Callable[[], Any]) -> Any:
    """``a and b``."""
    return _boolean(values, True)


def or_(*values: Callable[[], Any]) -> Any:
    """``a or b``."""
    return _boolean(values, False)


def not_(value: Any) -> Any:
    """``not a``."""
    return elementwise.logical_not(truth(value)) if is_traced(value) else not value


def chain(first: Any, *links: Callable[..., Any]) -> Any:
    """``a < b < c``: comparisons and their right operands in turn, each operand evaluated once, and none that is not
    needed.
    """
    left = first

    def link(compare: Callable[[Any, Any], Any], operand: Callable[[], Any]) -> Callable[[], Any]:
        def compared() -> Any:
            nonlocal left
            before, left = left, operand()
            return compare(before, left)

        return compared

    return _boolean([link(*pair) for pair in zip(links[::2], links[1::2], strict=True)], True)


def plain_test(test: Any, reason: str) -> Any:
    """The test of a statement that stays Python."""
    if is_traced(test):
        refuse(f"a test on a traced array stands over {reason}", "Decide on Python values there")
    return test


def plain_iterable(iterable: Any, reason: str) -> Any:
    """The iterable of a loop that stays Python."""
    return iterable


def host_(body: Body, given: Sequence[Any], gives: bool) -> Any:
    """Lines of Python that no graph can hold. See :class:`Witness`."""
    recorder = RECORDER.get()
    if recorder is None:
        return body(*given)
    if not isinstance(recorder, Witness):
        told = f"{user_source()}: this line of Python stands in a branch, a loop or a gradient that is traced"
        raise refused(TraceError(f"{told}, where its numbers are not known."))
    return recorder.call(body, given, gives=gives)


def asked_(test: Any) -> bool:
    """The test of an ``if`` that no graph can hold: one type in every call, whatever gives it."""
    return bool(test)


def _boolean(values: Sequence[Callable[[], Any]], go_on: bool) -> Any:
    result: Any = go_on
    for index, value in enumerate(values):
        if is_traced(result):
            result = _joined(result, value, go_on)
        else:
            result = value()
            if not is_traced(result) and index < len(values) - 1 and bool(result) != go_on:
                return result
    return result


def _joined(first: Any, second: Callable[[], Any], go_on: bool) -> Any:
    """The second value where the first one goes on, else the first: for bools, whether both hold, or one."""
    if first.type.dtype != "bool":
        return choose(truth(first), *((second, lambda: first) if go_on else (lambda: first, second)))
    found = second()
    if not isinstance(found, bool) and not (isinstance(found, Array) and found.type.dtype == "bool"):
        refuse("`and` or `or` on a traced bool gives something else in one case", "Compare it with a number")
    join = elementwise.logical_and if go_on else elementwise.logical_or
    return join(truth(first), truth(found))
