"""What pieces of a function's syntax assign, leave and contain."""

import ast
from collections.abc import Iterator, Sequence

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


# Names of what is called for more than its result. Not "add", "update" and such, which are array functions too.
_CHANGING = frozenset(
    "append appendleft delattr exec extend input next pop popitem popleft print setattr setdefault write".split()
)


def own(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of this scope: not those inside of inner functions and comprehensions."""
    for node in nodes:
        yield node
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            yield from own(list(ast.iter_child_nodes(node)))


def assigned(nodes: Sequence[ast.AST]) -> list[str]:
    """The names that statements bind, sorted."""
    found: set[str] = set()
    for node in own(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        elif isinstance(node, _COMPREHENSIONS):  # := in one binds a name outside of it
            found.update(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
    return sorted(found)


def holds(nodes: Sequence[ast.AST], *kinds: type[ast.AST]) -> bool:
    """Whether a node of one of these kinds is in this scope."""
    return any(isinstance(node, kinds) for node in own(nodes))


def leaves_loop(nodes: Sequence[ast.AST], *kinds: type[ast.AST]) -> bool:
    """Whether a break or continue among these statements belongs to the loop around them."""
    for node in nodes:
        if isinstance(node, kinds):
            return True
        if not isinstance(node, (*_SCOPES, ast.While, ast.For)) and leaves_loop(
            list(ast.iter_child_nodes(node)), *kinds
        ):
            return True
    return False


def effects(nodes: Sequence[ast.AST]) -> str | None:
    """What statements do besides giving names values, which a graph cannot do on a condition; None for nothing."""
    for node in own(nodes):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            return "a write into an attribute or an item"
        if isinstance(node, (ast.Raise, ast.Assert)):
            return "a raise or an assert"
        unused = [n for n in ast.walk(node.value) if isinstance(n, ast.Call)] if isinstance(node, ast.Expr) else []
        if unused:
            return f"a call of {called(unused[0])!r} whose result is not used"
        if isinstance(node, ast.Call) and called(node) in _CHANGING:
            return f"a call of {called(node)!r}, which changes something"
    return None


def called(node: ast.Call) -> str:
    """The name of what is called, without what it belongs to."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "a function")
