"""Expressions that decide: ``a if t else b``, and, or, not, and chains of comparisons; and ``super()`` in full."""

import ast

from coterie.compute.interactive.frontend.names import effects
from coterie.compute.interactive.frontend.syntax import call, function_of, load


class Super(ast.NodeTransformer):
    """``super()``, which looks at the function around it, in its full form, which may stand in a branch."""

    def __init__(self, first: str) -> None:
        self._first = first

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # has a first argument of its own

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [ast.copy_location(load(name), node) for name in ("__class__", self._first)]
        return node


class Expressions(ast.NodeTransformer):
    """What is not evaluated in any case becomes a function without arguments."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # rewritten as a function of its own

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node  # a function in it would not see its names

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        reason = effects([node.body, node.orelse])
        self.generic_visit(node)
        if reason is not None:
            node.test = call("plain_test", node.test, ast.Constant(reason))
            return node
        branches = (function_of((), value) for value in (node.body, node.orelse))
        return ast.copy_location(call("choose", node.test, *branches), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        reason = effects(node.values[1:])
        self.generic_visit(node)
        if reason is not None:
            *tests, last = node.values
            node.values = [*(call("plain_test", test, ast.Constant(reason)) for test in tests), last]
            return node
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return ast.copy_location(call(name, *(function_of((), value) for value in node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(call("not_", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        links: list[ast.expr] = []
        for op, operand in zip(node.ops, node.comparators, strict=True):
            compared = ast.Compare(load("left__"), [op], [load("right__")])
            links += [function_of(("left__", "right__"), compared), function_of((), operand)]
        return ast.copy_location(call("chain", node.left, *links), node)


def lazy(node: ast.AST) -> bool:
    """Whether a name is bound (:=) where a function without arguments will stand, which would keep it to itself."""
    for part in ast.walk(node):
        inside: list[ast.AST] = []
        if isinstance(part, ast.IfExp):
            inside = [part.body, part.orelse]
        elif isinstance(part, ast.BoolOp):
            inside = list(part.values)
        elif isinstance(part, ast.Compare) and len(part.ops) > 1:
            inside = list(part.comparators)
        if any(isinstance(n, ast.NamedExpr) for expression in inside for n in ast.walk(expression)):
            return True
    return False
