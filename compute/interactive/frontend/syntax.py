"""Pieces of syntax, made."""

import ast
from collections.abc import Sequence
from typing import Any

FLOW = "flow__"
"""Under which name a rewritten function knows the operators."""

SYNTAX: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
"""What definitions have besides in newer Pythons."""


def load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def call(operator: str, *arguments: ast.expr) -> ast.expr:
    """A call of an operator."""
    return ast.Call(ast.Attribute(load(FLOW), operator, ast.Load()), list(arguments), [])


def names_tuple(names: Sequence[str], context: type[ast.expr_context] = ast.Load) -> ast.expr:
    return ast.Tuple([ast.Name(name, context()) for name in names], context())


def strings(names: Sequence[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def function_of(names: Sequence[str], value: ast.expr) -> ast.expr:
    """A lambda."""
    return ast.Lambda(ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, []), value)


def assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def augmented(node: ast.AugAssign, target: ast.Name) -> ast.stmt:
    """``a += b`` as ``a = operator.iadd(a, b)``."""
    name = type(node.op).__name__.lower()
    name = _SHORT.get(name, name.removeprefix("bit"))
    return located(assign(target.id, call("augmented", ast.Constant(f"i{name}"), load(target.id), node.value)), node)


# Operators that syntax and the module operator call differently.
_SHORT = {"mult": "mul", "div": "truediv", "matmult": "matmul"}


def located(made: Any, like: ast.AST) -> Any:
    """Made-up syntax on the first line of what it stands for."""
    line: int = getattr(like, "lineno", 1)
    place = {"lineno": line, "end_lineno": line, "col_offset": 0, "end_col_offset": 0}
    for node in ast.walk(made):
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            for name, value in place.items():
                setattr(node, name, value)
    return made
