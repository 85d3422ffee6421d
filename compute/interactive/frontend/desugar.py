"""Statements that a graph has no word for, in terms of those that it has.

A return inside a loop leaves the loop and is done behind it; an else behind a loop is an if on whether the loop was
left; a del leaves a name without a value. What these become means the same in Python, so it does no harm where nothing
is traced.

    while test:              result, returned = flow.Unset(), False
        if y > 3:            while test:
            return y    →        if y > 3:
    return -y                        result, returned = y, True
                                     break
                             if returned: return result
                             return -y
"""

import ast
from collections.abc import Sequence

from coterie.compute.interactive.frontend.names import holds, leaves_loop
from coterie.compute.interactive.frontend.syntax import assign, call, load, located

Loop = ast.While | ast.For


class Desugar:
    """Rewrites the statements of one function, without those of functions in it."""

    def __init__(self) -> None:
        self._count = 0

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements in simpler terms."""
        done: list[ast.stmt] = []
        for statement in statements:
            made = self._statement(statement)
            done += [located(node, statement) for node in made]
            if isinstance(made[-1], ast.Return):
                break  # nothing behind it is reached
        return done

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Delete):
            return [_deleted(target) for target in node.targets]
        if isinstance(node, ast.Assert):
            node.test = call("plain_test", node.test, ast.Constant("an assert"))
        for name in ("body", "orelse", "finalbody"):
            inner: list[ast.stmt] | None = getattr(node, name, None)
            if inner and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                setattr(node, name, self.block(inner))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                handler.body = self._handled(handler, self.block(handler.body))
        if isinstance(node, ast.Match):
            for case in node.cases:
                case.body = self.block(case.body)
        if isinstance(node, ast.Expr):
            return [_decided(node)]
        return self._loop(node) if isinstance(node, (ast.While, ast.For)) else [node]

    def _handled(self, handler: ast.ExceptHandler, body: list[ast.stmt]) -> list[ast.stmt]:
        """The body of an except, which takes the name of the error away by itself."""
        if handler.name is None:
            return body
        name, handler.name = handler.name, self._fresh("caught")
        gone = _deleted(ast.Name(name, ast.Del()))
        whole = [assign(name, load(handler.name)), ast.Try(body, [], [], [gone])]
        return [located(made, handler) for made in whole]

    def _loop(self, node: Loop) -> list[ast.stmt]:
        if _hidden(node.body):
            return [node]
        endless = isinstance(node, ast.While) and _is_true(node.test) and not leaves_loop(node.body, ast.Break)
        before: list[ast.stmt] = []
        after: list[ast.stmt] = []
        if holds(node.body, ast.Return):
            result, returned = self._fresh("result"), self._fresh("returned")
            node.body = _leaving(node.body, result, returned)
            before += [assign(result, call("Unset")), assign(returned, ast.Constant(False))]
            told = ast.Return(load(result))
            after = [told if endless else ast.If(load(returned), [told], [])]
        if node.orelse:
            left = self._fresh("left")
            node.body = _marking(node.body, left)
            before.append(assign(left, ast.Constant(False)))
            rest, node.orelse = node.orelse, []
            after.append(ast.If(ast.UnaryOp(ast.Not(), load(left)), rest, []))
        if isinstance(node, ast.While) and holds([node.test], ast.NamedExpr):
            # The name is bound in the body, where it can be carried.
            leave = located(ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], []), node)
            node.test, node.body = located(ast.Constant(True), node), [leave, *node.body]
        return [*before, node, *after]

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}__"


def _is_true(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def _decided(node: ast.Expr) -> ast.stmt:
    """An expression that is a statement, as the decision that it is: ``a and f()`` calls f where a holds."""
    value = node.value
    if isinstance(value, ast.IfExp):
        body, orelse = (_decided(located(ast.Expr(part), node)) for part in (value.body, value.orelse))
        return located(ast.If(value.test, [body], [orelse]), node)
    if isinstance(value, ast.BoolOp):
        *first, last = value.values
        test = first[0] if len(first) == 1 else ast.BoolOp(value.op, first)
        test = test if isinstance(value.op, ast.And) else ast.UnaryOp(ast.Not(), test)
        return located(ast.If(test, [_decided(located(ast.Expr(last), node))], []), node)
    return node


def _deleted(target: ast.expr) -> ast.stmt:
    if isinstance(target, ast.Name):
        return assign(target.id, call("Undefined", ast.Constant(target.id)))
    return ast.Delete([target])


def _hidden(body: Sequence[ast.stmt]) -> bool:
    """Whether a loop is left from inside of a statement that must see it go: with, try or match."""
    for node in body:
        if isinstance(node, (ast.With, ast.Try, ast.Match)) and (
            holds([node], ast.Return) or leaves_loop([node], ast.Break, ast.Continue)
        ):
            return True
        if isinstance(node, ast.If) and (_hidden(node.body) or _hidden(node.orelse)):
            return True
    return False


def _leaving(body: Sequence[ast.stmt], result: str, returned: str) -> list[ast.stmt]:
    """The body with every return as a break that says so. Loops in it have none left: they were done before."""
    made: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Return):
            value = node.value or ast.Constant(None)
            parts = [assign(result, value), assign(returned, ast.Constant(True)), ast.Break()]
            return [*made, *(located(part, node) for part in parts)]
        if isinstance(node, ast.If):
            node.body, node.orelse = (_leaving(part, result, returned) for part in (node.body, node.orelse))
        made.append(node)
    return made


def _marking(body: Sequence[ast.stmt], left: str) -> list[ast.stmt]:
    """The body in which every break of the loop around it sets a flag."""
    made: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Break):
            return [*made, located(assign(left, ast.Constant(True)), node), node]
        if isinstance(node, ast.If):
            node.body, node.orelse = (_marking(part, left) for part in (node.body, node.orelse))
        made.append(node)
    return made
