"""Rewrite the source of a function so that what its if, while and for decide is asked of :mod:`operators`.

Each branch and each body becomes an inner function from the variables that it may change to their new values. Whether
a test is a number or a traced array is only known when the function runs: on numbers the operators do what Python does.

    if x > 0:            def branch_1(y): y = x; return (y,)
        y = x       →    def branch_2(y): y = -x; return (y,)
    else:                (y,) = flow.if_(x > 0, branch_1, branch_2, (y,), ("y",))
        y = -x

A break or continue becomes a flag, and what stands behind it is guarded. A return in a branch takes the rest of the
function along as the other branch. A return inside a loop, and writes into attributes or items, stay Python: there a
traced test is refused with its line.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from copy import deepcopy
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from coterie.compute.frontend import operators
from coterie.compute.frontend.names import assigned, holds, leaves_loop, writes_elsewhere

_FLOW = "flow__"
_UNTOUCHED = (
    ast.Global,
    ast.Nonlocal,
    ast.Delete,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.AsyncFor,
    ast.AsyncWith,
    ast.NamedExpr,
    ast.Match,
)
_DECISIONS = (ast.If, ast.While, ast.For, ast.IfExp, ast.BoolOp, ast.Not)


def rewrite(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its control flow rewritten; the same function where there is none, or no source to read."""
    if isinstance(fn, MethodType):
        inner = rewrite(fn.__func__)
        return fn if inner is fn.__func__ else MethodType(inner, fn.__self__)
    if not isinstance(fn, FunctionType) or fn.__name__ == "<lambda>" or hasattr(fn, "__wrapped__"):
        return fn
    try:
        lines, first = inspect.getsourcelines(fn)
        definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, IndexError):
        return fn
    if not isinstance(definition, ast.FunctionDef) or not any(isinstance(n, _DECISIONS) for n in ast.walk(definition)):
        return fn
    if holds(definition.body, *_UNTOUCHED):
        return fn
    ast.increment_lineno(definition, first - 1)
    definition.decorator_list = []
    if definition.args.posonlyargs or definition.args.args:
        _Super([*definition.args.posonlyargs, *definition.args.args][0].arg).generic_visit(definition)
    rewritten = _Rewriter().function(definition)
    return _made(fn, rewritten)


def _made(fn: FunctionType, definition: ast.FunctionDef) -> Callable[..., Any]:
    """The function of a definition, in the place of another: its globals, its closure, its defaults."""
    free = [*fn.__code__.co_freevars, _FLOW]
    arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
    factory = ast.FunctionDef("factory__", arguments, [definition], [], **_SYNTAX)
    # Under its own name it would hide the global that it calls itself by.
    definition.name = "function__"
    module = ast.fix_missing_locations(ast.Module([factory], []))
    outer = compile(module, fn.__code__.co_filename, "exec", dont_inherit=True)
    code = _code(_code(outer, "factory__"), "function__").replace(co_name=fn.__name__, co_qualname=fn.__qualname__)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    cells[_FLOW] = CellType(operators)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__, made.__module__, made.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    return made


_SYNTAX: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}


def _code(holder: CodeType, name: str) -> CodeType:
    return next(c for c in holder.co_consts if isinstance(c, CodeType) and c.co_name == name)


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _call(operator: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(_load(_FLOW), operator, ast.Load()), list(arguments), [])


def _tuple(names: Sequence[str], context: type[ast.expr_context] = ast.Load) -> ast.expr:
    return ast.Tuple([ast.Name(name, context()) for name in names], context())


def _strings(names: Sequence[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def _thunk(value: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


class _Super(ast.NodeTransformer):
    """``super()``, which looks at the function around it, in its full form, which may stand in a branch."""

    def __init__(self, first: str) -> None:
        self._first = first

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # has a first argument of its own

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [ast.copy_location(_load(name), node) for name in ("__class__", self._first)]
        return node


class _Expressions(ast.NodeTransformer):
    """``a if t else b``, and, or, not, and chains of comparisons."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # rewritten as a function of its own

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call("choose", node.test, _thunk(node.body), _thunk(node.orelse)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return ast.copy_location(_call(name, *map(_thunk, node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call("not_", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        if len(node.ops) == 1 or not all(isinstance(x, (ast.Name, ast.Constant)) for x in operands[1:-1]):
            return node
        pairs = [
            _thunk(ast.Compare(left, [op], [right]))
            for left, op, right in zip(operands, node.ops, operands[1:], strict=False)
        ]
        return ast.copy_location(_call("and_", *pairs), node)


class _Rewriter:
    """Rewrites the statements of one function. Made-up names end in two underscores."""

    def __init__(self) -> None:
        self._count = 0
        self._variables: set[str] = set()

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if holds(node.body, *_UNTOUCHED):
            return node
        inner = _Rewriter()
        body = inner._block(node.body)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        given = {argument.arg for argument in arguments if argument is not None}
        start = [
            _located(_set(name, _call("Undefined", ast.Constant(name))), node.body[0])
            for name in sorted(inner._variables - given)
        ]
        made = ast.FunctionDef(node.name, node.args, [*start, *body], [], **_SYNTAX)
        made.decorator_list = node.decorator_list
        return ast.copy_location(made, node)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}__"

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for index, statement in enumerate(statements):
            rest = statements[index + 1 :]
            if isinstance(statement, ast.If) and _returns(statement) and not _stays(statement):
                return [*done, *self._returning_if(statement, rest)]
            done += [_located(made, statement) for made in self._statement(statement)]
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
        if isinstance(node, (ast.With, ast.Try)):
            if holds([node], ast.Return, ast.Break, ast.Continue):
                return [node]
            for name in ("body", "orelse", "finalbody"):
                if getattr(node, name, None):
                    setattr(node, name, self._block(getattr(node, name)))
            return [node]
        return [_Expressions().visit(node)]

    def _kept(self, node: ast.If | ast.While | ast.For) -> ast.stmt:
        """Python's own statement, whose test must be no traced array."""
        reason = "a return inside a loop" if _returns(node) else "a write into an attribute or an item"
        reason = "an else behind a loop" if not isinstance(node, ast.If) and node.orelse else reason
        if isinstance(node, ast.For):
            node.iter = _call("plain_iterable", _Expressions().visit(node.iter), ast.Constant(reason))
        else:
            node.test = _call("plain_test", _Expressions().visit(node.test), ast.Constant(reason))
        node.body = [made for child in node.body for made in self._inner(child)]
        node.orelse = [made for child in node.orelse for made in self._inner(child)]
        return node

    def _inner(self, node: ast.stmt) -> list[ast.stmt]:
        """A statement whose return, break and continue must keep their meaning for the loop around it."""
        if isinstance(node, ast.If) and holds([node], ast.Return, ast.Break, ast.Continue):
            return [self._kept(node)]
        return [_located(made, node) for made in self._statement(node)]

    def _branch(self, body: Sequence[ast.stmt], names: Sequence[str], first: Sequence[str] = ()) -> ast.FunctionDef:
        """An inner function from variables to variables."""
        self._variables.update(names)
        arguments = ast.arguments([], [ast.arg(name) for name in (*first, *names)], None, [], [], None, [])
        end = ast.Return(_tuple(names))
        return ast.FunctionDef(self._fresh("branch"), arguments, [*body, end], [], **_SYNTAX)

    def _if(self, node: ast.If) -> list[ast.stmt]:
        names = assigned([*node.body, *node.orelse])
        true, false = (self._branch(self._block(body), names) for body in (node.body, node.orelse))
        test = _Expressions().visit(node.test)
        value = _call("if_", test, _load(true.name), _load(false.name), _tuple(names), _strings(names))
        return [true, false, ast.Assign([_tuple(names, ast.Store)], value) if names else ast.Expr(value)]

    def _returning_if(self, node: ast.If, rest: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Both branches run to the end of the function."""
        bodies = [body if _always_returns(body) else [*body, *rest] for body in (node.body, node.orelse)]
        names = assigned([*node.body, *node.orelse, *rest])
        branches: list[ast.FunctionDef] = []
        for body in bodies:
            branch = self._branch(self._block(deepcopy(body)), names)  # both may hold the rest
            branch.body[-1] = ast.Return(ast.Constant(None))
            branches.append(branch)
        test = _Expressions().visit(node.test)
        value = _call("return_if", test, *(_load(branch.name) for branch in branches), _tuple(names))
        return [_located(made, node) for made in (*branches, ast.Return(value))]

    def _while(self, node: ast.While) -> list[ast.stmt]:
        done, skip = self._fresh("done"), self._fresh("skip")
        body, flags = self._guarded(node.body, done, skip)
        names = sorted({*assigned(node.body), *flags})
        step = self._branch(self._block(body), names)
        test: ast.expr = node.test
        if done in flags:
            test = ast.BoolOp(ast.And(), [ast.UnaryOp(ast.Not(), _load(done)), test])
        check = self._branch([], names)
        check.body = [ast.Return(_Expressions().visit(test))]
        value = _call("while_", _load(check.name), _load(step.name), _tuple(names), _strings(names))
        return [*self._lowered(flags), step, check, *_stored(names, value)]

    def _for(self, node: ast.For) -> list[ast.stmt]:
        done, skip = self._fresh("done"), self._fresh("skip")
        body, flags = self._guarded(node.body, done, skip)
        names = sorted({*assigned([node.target, *node.body]), *flags})
        item = self._fresh("item")
        take: ast.stmt = ast.Assign([node.target], _load(item))
        if done in flags:  # what comes after a break is not even looked at
            body = [_located(ast.If(ast.UnaryOp(ast.Not(), _load(done)), body, []), node)]
        step = self._branch([take, *self._block(body)], names, (item,))
        iterable = _Expressions().visit(node.iter)
        if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "range":
            iterable = _call("range_", _load("range"), *iterable.args)
        stop = ast.Constant(names.index(done) if done in flags else None)
        value = _call("for_", iterable, _load(step.name), _tuple(names), _strings(names), stop)
        return [*self._lowered(flags), step, *_stored(names, value)]

    def _lowered(self, flags: Sequence[str]) -> list[ast.stmt]:
        return [_set(flag, ast.Constant(False)) for flag in flags]

    def _guarded(self, body: Sequence[ast.stmt], done: str, skip: str) -> tuple[list[ast.stmt], list[str]]:
        """The body with break and continue as flags: done ends the loop, skip ends the step."""
        breaks, continues = leaves_loop(body, ast.Break), leaves_loop(body, ast.Continue)
        if not breaks and not continues:
            return list(body), []
        reset = [_located(_set(skip, ast.Constant(False)), body[0])]
        return [*reset, *_flagged(body, done, skip)], [*([done] if breaks else []), skip]


def _flagged(body: Sequence[ast.stmt], done: str, skip: str) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    for index, node in enumerate(body):
        if isinstance(node, (ast.Break, ast.Continue)):
            flags = [done, skip] if isinstance(node, ast.Break) else [skip]
            return [*made, *(_located(_set(flag, ast.Constant(True)), node) for flag in flags)]
        if not isinstance(node, ast.If) or not leaves_loop([node], ast.Break, ast.Continue):
            made.append(node)
            continue
        branches = [_flagged(part, done, skip) for part in (node.body, node.orelse)]
        made.append(_located(ast.If(node.test, *branches), node))
        rest = _flagged(body[index + 1 :], done, skip)
        if rest:
            made.append(_located(ast.If(ast.UnaryOp(ast.Not(), _load(skip)), rest, []), rest[0]))
        return made
    return made


def _stored(names: Sequence[str], value: ast.expr) -> list[ast.stmt]:
    return [ast.Assign([_tuple(names, ast.Store)], value) if names else ast.Expr(value)]


def _located(made: Any, like: ast.stmt) -> Any:
    """Made-up syntax on the first line of the statement that it stands for."""
    place = {"lineno": like.lineno, "end_lineno": like.lineno, "col_offset": 0, "end_col_offset": 0}
    for node in ast.walk(made):
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            for name, value in place.items():
                setattr(node, name, value)
    return made


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
        return writes_elsewhere([*node.body, *node.orelse]) or any(_returns(loop) for loop in inside)
    in_the_open = any(
        leaves_loop([part], ast.Break, ast.Continue) for part in node.body if isinstance(part, (ast.With, ast.Try))
    )
    return _returns(node) or writes_elsewhere(node.body) or bool(node.orelse) or in_the_open
