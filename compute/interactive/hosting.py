"""Which lines of a function are called on the host: those at which its traces end, found one by one."""

import ast
from collections.abc import Callable, Collection, Sequence
from functools import partial
from traceback import walk_tb
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from coterie.compute.interactive.frontend.definition import definition_of
from coterie.compute.interactive.frontend.regions import Place, Unhosted, statement_at
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.witness import Witness
from coterie.compute.ir import NDArray
from coterie.errors import TraceError

T = TypeVar("T")

_MOST_LINES = 32
"""Each costs a trace."""


def with_host_lines(
    fn: Callable[..., Any],
    error: TraceError,
    numbers: Sequence[NDArray],
    attempt: Callable[[Callable[..., Any], Witness], T],
) -> T | TraceError:
    """What attempt makes of the function in which lines are calls of the host, once it raises no TraceError; else the
    first error, whose hint says why.

    error: that of the trace of the function as it is. numbers: the arguments of the call at hand that are arrays.
    attempt: raises TraceError as tracing and compiling do.
    """
    hosted: set[Place] = set()
    found = error
    for _ in range(_MOST_LINES):
        place = _place(fn, found, hosted)
        if place is None:
            return error if found is error else _told(error, found.message)
        hosted.add(place)
        try:
            return attempt(rewrite(fn, hosted), Witness(numbers))
        except TraceError as another:
            found = another
        except Unhosted as why:
            return _told(error, f"{why}.")
        except Exception as failed:  # of a user's line, which is raised again where the function runs as it is
            return _told(error, f"it raises {type(failed).__name__}: {failed}")
    return _told(error, f"more than {_MOST_LINES} lines would be calls of the host.")


def _told(error: TraceError, why: str) -> TraceError:
    hint = f"The line alone cannot be called on the host: {why}"
    return TraceError(error.message, hint=hint, **error.details)


def _place(fn: Callable[..., Any], error: TraceError, hosted: Collection[Place]) -> Place | None:
    """The statement of the function at which a trace ended for want of numbers; None for none that can be called on the
    host.
    """
    own = _function_in(fn)
    if own is None or "wanted" not in error.details:
        return None
    file = own.__code__.co_filename
    passed = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    try:
        definition = definition_of(own)
    except (OSError, SyntaxError, IndexError):
        return None
    return statement_at(definition, passed[::-1], hosted) if isinstance(definition, ast.FunctionDef) else None


def _function_in(fn: Any) -> FunctionType | None:
    """The function whose source is rewritten for what is called."""
    if isinstance(fn, MethodType):
        return _function_in(fn.__func__)
    if isinstance(fn, partial):
        return _function_in(fn.func)
    if isinstance(fn, FunctionType):
        return fn
    method = vars(cast("type[Any]", type(fn))).get("__call__")
    return method if isinstance(method, FunctionType) else None
