"""From a function to its definition and back: reading the source, and making a function of a changed definition."""

import __future__

import ast
import dis
import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from coterie.compute.interactive.frontend import operators
from coterie.compute.interactive.frontend.syntax import FLOW, SYNTAX


def definition_of(fn: FunctionType) -> ast.stmt:
    """The statement that defines a function, with the lines of its file. Raises OSError, SyntaxError or IndexError
    where there is no source.
    """
    lines, first = inspect.getsourcelines(fn)
    source = "".join(lines)
    inside = source[0].isspace()  # of another: as it stands, since a text in it may span lines
    found = ast.parse(f"if True:\n{source}" if inside else source).body[0]
    ast.increment_lineno(found, first - 2 if inside else first - 1)
    return found.body[0] if isinstance(found, ast.If) else found


def runs(fn: FunctionType, definition: ast.FunctionDef) -> bool:
    """Whether a function is what this definition says: its file may have been edited since it was imported."""
    if any(isinstance(node, ast.Assert) for node in ast.walk(definition)):
        return True  # test runners rewrite these
    return _content(_compiled(fn, definition)) == _content(fn.__code__)


def made(fn: FunctionType, definition: ast.FunctionDef) -> Callable[..., Any]:
    """The function of a definition, in the place of another: its globals, its closure, its defaults."""
    code = _compiled(fn, definition).replace(co_name=fn.__name__, co_qualname=fn.__qualname__)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    cells[FLOW] = CellType(operators)
    closure = tuple(cells[name] for name in code.co_freevars)
    whole = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    whole.__kwdefaults__, whole.__module__, whole.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    return whole


def _compiled(fn: FunctionType, definition: ast.FunctionDef) -> CodeType:
    """The code of a definition in the scope of a function."""
    free = [*fn.__code__.co_freevars, FLOW]
    arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
    # Under its own name it would hide the global that it calls itself by.
    inner = ast.FunctionDef("function__", definition.args, definition.body, [], **SYNTAX)
    holder = ast.ClassDef(_class_around(fn.__qualname__), [], [], [ast.copy_location(inner, definition)], [], **SYNTAX)
    factory = ast.FunctionDef("factory__", arguments, [holder], [], **SYNTAX)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    future = fn.__code__.co_flags & __future__.annotations.compiler_flag
    code = compile(module, fn.__code__.co_filename, "exec", flags=future, dont_inherit=True)
    for name in ("factory__", holder.name, "function__"):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return code


def _class_around(qualified: str) -> str:
    """The innermost class around a function, which tells what a name such as __x means; "_", where it means itself."""
    for part in reversed(qualified.split(".<locals>.")):
        if "." in part:
            return part.split(".")[-2]
    return "_"


# Instructions that do not depend on what else is in a file, such as its imports.
_LASTING = ("BINARY", "COMPARE", "CONTAINS", "IS_OP", "LOAD_DEREF", "LOAD_FAST", "STORE", "UNARY")


def _content(code: CodeType) -> tuple[Any, ...]:
    """What code does, as far as it lasts when it is compiled elsewhere."""
    steps = [(s.opname, s.argrepr) for s in dis.get_instructions(code) if s.opname.startswith(_LASTING)]
    held: list[Any] = [_content(c) if isinstance(c, CodeType) else _value(c) for c in code.co_consts]
    return code.co_names, code.co_varnames, held, steps


def _value(constant: object) -> tuple[type, str]:
    # The qualified name of a class in a function is one, too.
    return type(constant), repr(constant).rpartition("<locals>.")[2]
