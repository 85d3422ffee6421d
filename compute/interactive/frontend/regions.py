"""Lines of Python that a graph calls on the host, taken out of a function.

Lines that follow each other become one inner function of the variables that they read, which :mod:`operators` calls;
the test of an ``if`` becomes a line of its own.

    y = np.sort(x.numpy())          def host_1__(x): y = np.sort(x.numpy()); y[0] = 0.0; return (y,)
    y[0] = 0.0                 →    (y,) = flow.host_(host_1__, (x,), True)
    return x + y                    return x + y
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from coterie.compute.interactive.frontend.names import assigned, effects, own
from coterie.compute.interactive.frontend.syntax import SYNTAX, assign, call, load, located, names_tuple

# What a with does lasts while its body runs, so that it is called with it, or not at all.
_INSIDE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.With)
_LINES = (*_INSIDE, ast.Return, ast.Expr)
_AROUND = (ast.If, ast.For, ast.While)


Place: TypeAlias = tuple[int, int]
"""Where a statement begins: its line and column."""


class Unhosted(Exception):
    """Why lines cannot be called on the host: the rest of a sentence about them."""


def statement_at(definition: ast.FunctionDef, lines: Sequence[int], hosted: Collection[Place]) -> Place | None:
    """The statement that the first of these lines belongs to which belongs to one: of the function's own, such as can
    be called on the host, or an ``if`` by its test. hosted: those that are called there, of which it is none.
    """
    left = [node for node in _candidates(definition.body) if _place(node) not in hosted]
    return next((_place(node) for line in lines for node in left if node.lineno <= line <= _end(node)), None)


def with_regions(definition: ast.FunctionDef, hosted: Collection[Place]) -> ast.FunctionDef:
    """The definition with these statements as calls of the host. Raises Unhosted."""
    arguments = definition.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {argument.arg for argument in given if argument is not None} | set(assigned(definition.body))
    shared = {n for node in ast.walk(definition) if isinstance(node, (ast.Global, ast.Nonlocal)) for n in node.names}
    definition.body = _Regions(frozenset(hosted), names - shared, shared).block(definition.body)
    return definition


def _candidates(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (*_LINES, ast.If)):
            yield node
        if isinstance(node, _AROUND):
            yield from _candidates([*node.body, *getattr(node, "orelse", [])])


def _place(node: ast.stmt) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.stmt) -> int:
    return (node.test if isinstance(node, ast.If) else node).end_lineno or node.lineno


class _Regions:
    """hosted: statements. variables: of the function. shared: with other scopes."""

    def __init__(self, hosted: frozenset[Place], variables: set[str], shared: set[str]) -> None:
        self._hosted, self._variables, self._shared = hosted, variables, shared
        self._count = 0
        self._given: set[str] = set()
        """What calls of the host give: to print it is one too, before Python has printed what stands in front of it."""

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        waiting: list[ast.stmt] = []
        for node in statements:
            marked = _place(node) in self._hosted or (_says(node) and not self._given.isdisjoint(_loaded(node)))
            # What is said is said once a run, so it is no part of what is called while the graph is made.
            if waiting and (not marked or not isinstance(node, _LINES) or _says(node) != _says(waiting[-1])):
                done += self._region(waiting)
                waiting = []
            if marked and isinstance(node, _LINES):
                waiting.append(node)
                self._given.update(assigned([node]))
                continue
            if isinstance(node, _AROUND):
                node.body = self.block(node.body)
            if isinstance(node, (ast.If, ast.For, ast.While)):
                node.orelse = self.block(node.orelse)
            if marked and isinstance(node, ast.If):
                self._count += 1
                test = f"test_{self._count}__"
                self._variables.add(test)
                done += self._region([located(assign(test, call("asked_", node.test)), node)])
                node.test = ast.copy_location(load(test), node.test)
            done.append(node)
        return [*done, *(self._region(waiting) if waiting else ())]

    def _region(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        reads, made = self._reads(statements)
        says, returns = _says(statements[0]), isinstance(statements[-1], ast.Return)
        self._count += 1
        name = f"host_{self._count}__"
        arguments = ast.arguments([], [ast.arg(each) for each in reads], None, [], [], None, [])
        end = [] if returns else [ast.Return(names_tuple(made))]
        body = ast.FunctionDef(name, arguments, [*statements, *end], [], **SYNTAX)
        value = call("host_", load(name), names_tuple(reads), ast.Constant(not says))
        last: ast.stmt = ast.Assign([names_tuple(made, ast.Store)], value)
        if returns or says:
            last = ast.Return(value) if returns else ast.Expr(value)
        return [located(node, statements[0]) for node in (body, last)]

    def _reads(self, statements: Sequence[ast.stmt]) -> tuple[list[str], list[str]]:
        """The variables that statements read before they give them a value, and those that they give one."""
        reads: set[str] = set()
        made: set[str] = set()
        for node in _in_order(statements):
            _check(node, made, self._shared)
            loads = _loaded(node)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                loads.add(node.target.id)
            reads |= (loads & self._variables) - made
            made |= set(assigned([node]))
        return sorted(reads), sorted(made)


def _loaded(node: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _in_order(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements as they run: a with without its body, then its body. Raises Unhosted."""
    for node in statements:
        if not isinstance(node, ast.With):
            yield node
            continue
        yield ast.copy_location(ast.With(node.items, []), node)
        if not all(isinstance(inner, _INSIDE) for inner in node.body):
            raise Unhosted("the line stands in a with that does more than giving names values")
        yield from _in_order(node.body)


def _says(node: ast.stmt) -> bool:
    """Whether it prints."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    return isinstance(node.value.func, ast.Name) and node.value.func.id == "print"


def _check(node: ast.stmt, made: set[str], shared: set[str]) -> None:
    """Raise Unhosted for what a statement does besides giving names values, but for printing, and for changes of what
    the lines before it in the same call have made.
    """
    if isinstance(node, ast.Expr) and not _says(node):
        raise Unhosted("the line gives no name a value")
    if shared & set(assigned([node])):
        raise Unhosted("the line writes a variable of another scope")
    checked: list[ast.AST] = [node]
    if _says(node):
        checked = list(ast.iter_child_nodes(node.value)) if isinstance(node, ast.Expr) else []
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inside = [t for t in targets if isinstance(t, ast.Subscript) and getattr(t.value, "id", None) in made]
        checked = [*(t for t in targets if t not in inside), *(t.slice for t in inside), node.value]
    if (reason := effects(checked)) is not None:
        raise Unhosted(f"the line has {reason}")
    if any(isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await)) for each in own(checked)):
        raise Unhosted("the line waits or yields")
