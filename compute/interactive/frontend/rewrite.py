"""Rewrite the source of a function so that what its if, while and for decide is asked of :mod:`operators`.

Each branch and each body becomes an inner function from the variables that it may change to their new values. Whether
a test is a number or a traced array is only known when the function runs: on numbers the operators do what Python does.

    if x > 0:            def branch_1(y): y = x; return (y,)
        y = x       →    def branch_2(y): y = -x; return (y,)
    else:                (y,) = flow.if_(x > 0, branch_1, branch_2, (y,), ("y",))
        y = -x

A break or continue becomes a flag, and what stands behind it is guarded. A return in a branch takes the rest of the
function along as the other branch; :mod:`desugar` has moved those in loops behind the loops. Writes into attributes or
items, calls of methods for their effect, and raise stay Python: there a traced test is refused with its line.
"""

import ast
import dis
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from coterie.compute.interactive.frontend.definition import definition_of, made, runs
from coterie.compute.interactive.frontend.desugar import Desugar
from coterie.compute.interactive.frontend.expressions import Expressions, Super, lazy
from coterie.compute.interactive.frontend.names import assigned, effects, holds, leaves_loop, own
from coterie.compute.interactive.frontend.refusal import explained
from coterie.compute.interactive.frontend.regions import Place, with_regions
from coterie.compute.interactive.frontend.syntax import (
    SYNTAX,
    assign,
    augmented,
    call,
    load,
    located,
    names_tuple,
    strings,
)

_UNTOUCHED = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_DECISIONS = (ast.If, ast.While, ast.For, ast.IfExp, ast.BoolOp, ast.Not, ast.Assert)


# What stands behind an if that returns sometimes is written twice; behind n of them, 2 ** n times.
_TWICE = 6


class _TooMuch(Exception):
    """A function is not rewritten because of what would come out."""


def rewrite(fn: Callable[..., Any], hosted: Collection[Place] = ()) -> Callable[..., Any]:
    """The function with its control flow rewritten; the same function where there is none. Methods, partial functions
    and objects that can be called are rewritten too. Where the source cannot be read or has something that is not
    rewritten, decisions on traced arrays are refused with that reason.

    hosted: statements that become calls of the host. Raises Unhosted for one that cannot.
    """
    if isinstance(fn, MethodType):
        inner = rewrite(fn.__func__, hosted)
        return fn if inner is fn.__func__ else MethodType(inner, fn.__self__)
    if isinstance(fn, partial):
        return partial(rewrite(fn.func, hosted), *fn.args, **fn.keywords)
    if not isinstance(fn, FunctionType):
        method = vars(type(fn)).get("__call__")
        ours = type(fn).__module__.partition(".")[0] == "coterie"
        return rewrite(MethodType(method, fn), hosted) if isinstance(method, FunctionType) and not ours else fn
    if hasattr(fn, "__wrapped__"):
        return (
            fn
            if fn.__globals__["__name__"].startswith("coterie.")
            else explained(fn, "it is wrapped by a decorator: put jit right on the function that decides")
        )
    if fn.__name__ == "<lambda>":
        return explained(fn, "a lambda is not rewritten: write it as a def") if _branches(fn.__code__) else fn
    try:
        definition = definition_of(fn)
    except (OSError, SyntaxError, IndexError):
        return explained(fn, "its source cannot be read: define it in a file") if _branches(fn.__code__) else fn
    if not isinstance(definition, ast.FunctionDef) or not (hosted or any(map(_decides, ast.walk(definition)))):
        return fn
    if not runs(fn, definition):
        return explained(fn, "its file is not what is running any more: start anew")
    if (reason := _untouched(definition)) is not None:
        return explained(fn, reason)
    definition.decorator_list = []
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    if parameters:
        Super(parameters[0].arg).generic_visit(definition)
    try:
        return made(fn, _Rewriter().function(with_regions(definition, hosted)))
    except _TooMuch as error:
        return explained(fn, f"{error}: put the result into a variable")
    except (SyntaxError, RecursionError):
        return explained(fn, "its branches and loops are nested too deeply")


def _decides(node: ast.AST) -> bool:
    return isinstance(node, _DECISIONS) or (isinstance(node, ast.Compare) and len(node.ops) > 1)


def _untouched(node: ast.FunctionDef) -> str | None:
    """Why a function is left as it is, if it is."""
    if holds(node.body, *_UNTOUCHED):
        return "it is a generator or waits, which is not rewritten"
    if holds(node.body, ast.TryStar):
        return "it has an except*, which is not rewritten"
    if lazy(node):
        return "it binds a name by := inside of and, or, if-else or a chain: bind it on a line of its own"
    shared = {name for n in ast.walk(node) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    # What stands behind an if that returns runs on a condition too; and a function may be called on one.
    first = next((i for i, n in enumerate(node.body) if isinstance(n, ast.If) and _returns(n)), len(node.body))
    conditional = [n for n in own(node.body) if isinstance(n, (ast.If, ast.While, ast.For))] + node.body[first:]
    functions = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
    for body in (conditional, *(function.body for function in functions)):
        if changed := sorted(shared & set(assigned(body))):
            return f"it, or a function in it, writes the variable {changed[0]!r} of another scope"
    return None


def _branches(code: CodeType) -> bool:
    """Whether compiled code, or a function made in it, asks whether something is true."""
    inner = (held for held in code.co_consts if isinstance(held, CodeType))
    asked = ("IF_", "UNARY_NOT", "TO_BOOL")  # as they are called in Python 3.11 to 3.14
    own = any(name in step.opname for step in dis.get_instructions(code) for name in asked)
    return own or any(map(_branches, inner))


class _Rewriter:
    """Rewrites the statements of one function. Made-up names end in two underscores."""

    def __init__(self) -> None:
        self._count = 0
        self._variables: set[str] = set()
        self._twice = 0  # how many ifs around hold what is being written in both of their branches

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if _untouched(node) is not None:
            return node
        inner = _Rewriter()
        body = inner._block(Desugar().block(node.body))
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        given = {argument.arg for argument in arguments if argument is not None}
        start = [
            located(assign(name, call("Undefined", ast.Constant(name))), node.body[0])
            for name in sorted(inner._variables - given)
        ]
        whole = ast.FunctionDef(node.name, node.args, [*start, *body], [], **SYNTAX)
        whole.decorator_list = node.decorator_list
        return ast.copy_location(whole, node)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}__"

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for index, statement in enumerate(statements):
            rest = statements[index + 1 :]
            if isinstance(statement, ast.If) and _returns(statement) and not _stays(statement):
                return [*done, *self._returning_if(statement, rest)]
            done += [located(made, statement) for made in self._statement(statement)]
        return done

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.FunctionDef):
            return [self.function(node)]
        if isinstance(node, (ast.If, ast.While, ast.For)):
            if _stays(node):
                return [self._kept(node)]
            if isinstance(node, ast.If):
                return self._if(node)
            return self._while(node) if isinstance(node, ast.While) else self._for(node)
        if isinstance(node, (ast.With, ast.Try, ast.Match)):
            return [self._surrounding(node)]
        node = Expressions().visit(node)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return [augmented(node, node.target)]
        return [node]

    def _surrounding(self, node: ast.With | ast.Try | ast.Match) -> ast.stmt:
        """A statement that is no decision itself. What leaves it stays Python's."""
        leaves = holds([node], ast.Return, ast.Break, ast.Continue)
        holders: list[Any] = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
        for holder in holders:
            for name in ("body", "orelse", "finalbody"):
                if inner := getattr(holder, name, None):
                    made = [n for child in inner for n in self._inner(child)] if leaves else self._block(inner)
                    setattr(holder, name, made)
        if isinstance(node, ast.With):
            node.items = [Expressions().visit(item) for item in node.items]
        if isinstance(node, ast.Match):
            node.subject = Expressions().visit(node.subject)
        return node

    def _kept(self, node: ast.If | ast.While | ast.For) -> ast.stmt:
        """Python's own statement, whose test must be no traced array."""
        reason = effects([node]) or "a return, break or continue inside of with, try or match"
        if isinstance(node, ast.For):
            node.iter = call("plain_iterable", Expressions().visit(node.iter), ast.Constant(reason))
        else:
            node.test = call("plain_test", Expressions().visit(node.test), ast.Constant(reason))
        node.body = [made for child in node.body for made in self._inner(child)]
        node.orelse = [made for child in node.orelse for made in self._inner(child)]
        return located(node, node)

    def _inner(self, node: ast.stmt) -> list[ast.stmt]:
        """A statement whose return, break and continue must keep their meaning for the loop around it."""
        if isinstance(node, ast.If) and holds([node], ast.Return, ast.Break, ast.Continue):
            return [self._kept(node)]
        return [located(made, node) for made in self._statement(node)]

    def _branch(self, body: Sequence[ast.stmt], names: Sequence[str], first: Sequence[str] = ()) -> ast.FunctionDef:
        """An inner function from variables to variables."""
        self._variables.update(names)
        given = [f"{name}_given__" for name in names]
        arguments = ast.arguments([], [ast.arg(name) for name in (*first, *given)], None, [], [], None, [])
        # The variables stay those of the function, so that functions made in it read what Python's would.
        start: list[ast.stmt] = []
        if names:
            start = [ast.Nonlocal(list(names)), ast.Assign([names_tuple(names, ast.Store)], names_tuple(given))]
        end = ast.Return(names_tuple(names))
        return ast.FunctionDef(self._fresh("branch"), arguments, [*start, *body, end], [], **SYNTAX)

    def _if(self, node: ast.If) -> list[ast.stmt]:
        names = assigned([*node.body, *node.orelse])
        true, false = (self._branch(self._block(body), names) for body in (node.body, node.orelse))
        test = Expressions().visit(node.test)
        value = call("if_", test, load(true.name), load(false.name), names_tuple(names), strings(names))
        return [true, false, ast.Assign([names_tuple(names, ast.Store)], value) if names else ast.Expr(value)]

    def _returning_if(self, node: ast.If, rest: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Both branches run to the end of the function."""
        twice = bool(rest) and not _always_returns(node.body) and not _always_returns(node.orelse)
        if twice and self._twice == _TWICE:
            raise _TooMuch(f"more than {_TWICE} of its ifs in a row return in a part of their branches only")
        self._twice += twice
        bodies = [body if _always_returns(body) else [*body, *rest] for body in (node.body, node.orelse)]
        names = assigned([*node.body, *node.orelse, *rest])
        branches: list[ast.FunctionDef] = []
        for body in bodies:
            branch = self._branch(self._block(deepcopy(body)), names)  # both may hold the rest
            branch.body[-1] = ast.Return(ast.Constant(None))
            branches.append(branch)
        self._twice -= twice
        test = Expressions().visit(node.test)
        value = call("return_if", test, *(load(branch.name) for branch in branches), names_tuple(names))
        return [located(made, node) for made in (*branches, ast.Return(value))]

    def _while(self, node: ast.While) -> list[ast.stmt]:
        done, skip = self._fresh("done"), self._fresh("skip")
        body, flags = self._guarded(node.body, done, skip)
        names = sorted({*assigned(node.body), *flags})
        step = self._branch(self._block(body), names)
        test: ast.expr = node.test
        if done in flags:
            test = ast.BoolOp(ast.And(), [ast.UnaryOp(ast.Not(), load(done)), test])
        check = self._branch([], names)
        check.body[-1] = ast.Return(Expressions().visit(test))
        value = call("while_", load(check.name), load(step.name), names_tuple(names), strings(names))
        return [*self._lowered(flags), step, check, *_stored(names, value)]

    def _for(self, node: ast.For) -> list[ast.stmt]:
        done, skip = self._fresh("done"), self._fresh("skip")
        body, flags = self._guarded(node.body, done, skip)
        names = sorted({*assigned([node.target, *node.body]), *flags})
        item = self._fresh("item")
        take: ast.stmt = ast.Assign([node.target], load(item))
        if done in flags:  # what comes after a break is not even looked at
            body = [located(ast.If(ast.UnaryOp(ast.Not(), load(done)), body, []), node)]
        step = self._branch([take, *self._block(body)], names, (item,))
        iterable = Expressions().visit(node.iter)
        if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "range":
            iterable = call("range_", load("range"), *iterable.args)
        stop = ast.Constant(names.index(done) if done in flags else None)
        value = call("for_", iterable, load(step.name), names_tuple(names), strings(names), stop)
        return [*self._lowered(flags), step, *_stored(names, value)]

    def _lowered(self, flags: Sequence[str]) -> list[ast.stmt]:
        return [assign(flag, ast.Constant(False)) for flag in flags]

    def _guarded(self, body: Sequence[ast.stmt], done: str, skip: str) -> tuple[list[ast.stmt], list[str]]:
        """The body with break and continue as flags: done ends the loop, skip ends the step."""
        breaks, continues = leaves_loop(body, ast.Break), leaves_loop(body, ast.Continue)
        if not breaks and not continues:
            return list(body), []
        reset = [located(assign(skip, ast.Constant(False)), body[0])]
        return [*reset, *_flagged(body, done, skip)], [*([done] if breaks else []), skip]


def _flagged(body: Sequence[ast.stmt], done: str, skip: str) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    for index, node in enumerate(body):
        if isinstance(node, (ast.Break, ast.Continue)):
            flags = [done, skip] if isinstance(node, ast.Break) else [skip]
            return [*made, *(located(assign(flag, ast.Constant(True)), node) for flag in flags)]
        if not isinstance(node, ast.If) or not leaves_loop([node], ast.Break, ast.Continue):
            made.append(node)
            continue
        branches = [_flagged(part, done, skip) for part in (node.body, node.orelse)]
        made.append(located(ast.If(node.test, *branches), node))
        rest = _flagged(body[index + 1 :], done, skip)
        if rest:
            made.append(located(ast.If(ast.UnaryOp(ast.Not(), load(skip)), rest, []), rest[0]))
        return made
    return made


def _stored(names: Sequence[str], value: ast.expr) -> list[ast.stmt]:
    return [ast.Assign([names_tuple(names, ast.Store)], value) if names else ast.Expr(value)]


def _returns(node: ast.stmt) -> bool:
    return holds([node], ast.Return)


def _always_returns(body: Sequence[ast.stmt]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise))


def _stays(node: ast.If | ast.While | ast.For) -> bool:
    """Whether a statement cannot be a graph."""
    if isinstance(node, ast.If):
        inside = [n for n in ast.walk(node) if isinstance(n, (ast.While, ast.For))]
        return effects([node]) is not None or any(_returns(loop) for loop in inside) or _left([node])
    return effects([node]) is not None or _returns(node) or bool(node.orelse) or _left(node.body)


def _left(nodes: Sequence[ast.stmt]) -> bool:
    """Whether a with, try or match is left by return, break or continue."""
    around = [n for n in own(nodes) if isinstance(n, (ast.With, ast.Try, ast.Match))]
    return any(_returns(n) or leaves_loop([n], ast.Break, ast.Continue) for n in around)
