"""Pytrees: dicts (by sorted key), lists, tuples and None, nested; anything else is a leaf."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from coterie.compute.source import user_source
from coterie.errors import InputError


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a tree without its leaves. Hashable, so that it can be part of a signature."""

    kind: str  # "leaf", "none", "dict", "list" or "tuple"
    keys: tuple[str, ...] = ()
    children: tuple["Structure", ...] = ()

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """The dotted path of every leaf in order."""
        if self.kind == "leaf":
            yield prefix
        names = self.keys or tuple(str(index) for index in range(len(self.children)))
        for name, child in zip(names, self.children, strict=True):
            yield from child.paths(f"{prefix}.{name}" if prefix else str(name))


LEAF = Structure("leaf")
_NONE = Structure("none")


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree in order, and its structure."""
    if tree is None:
        return [], _NONE
    if isinstance(tree, Mapping):
        mapping = cast("Mapping[str, Any]", tree)
        keys = _sorted(mapping)
        return _flatten_children("dict", keys, [mapping[key] for key in keys])
    if type(tree) in (list, tuple):
        return _flatten_children("list" if type(tree) is list else "tuple", (), list(cast("Sequence[Any]", tree)))
    if isinstance(tree, tuple):
        kind = type(cast("object", tree)).__name__
        raise InputError(
            f"{user_source()}: a {kind} is a tuple of a kind of its own, which trees do not have.",
            hint="Pass tuple(x), or a dict: x._asdict() of a named tuple.",
        )
    return [tree], LEAF


def _sorted(mapping: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return tuple(sorted(mapping))
    except TypeError:
        raise InputError(
            f"{user_source()}: the keys {list(mapping)!r} of a dict have no order among them.",
            hint="Name all entries of a dict by strings, or all by integers.",
        ) from None


def _flatten_children(kind: str, keys: tuple[str, ...], children: Sequence[Any]) -> tuple[list[Any], Structure]:
    leaves: list[Any] = []
    structures: list[Structure] = []
    for child in children:
        found, structure = flatten(child)
        leaves += found
        structures.append(structure)
    return leaves, Structure(kind, keys, tuple(structures))


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves. Raises InputError when their number is wrong."""
    if structure.leaves != len(leaves):
        raise InputError(f"A tree of {structure.leaves} leaves cannot be made from {len(leaves)}.")
    return _build(structure, iter(leaves))


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.kind == "leaf":
        return next(leaves)
    if structure.kind == "none":
        return None
    children = [_build(child, leaves) for child in structure.children]
    if structure.kind == "dict":
        return dict(zip(structure.keys, children, strict=True))
    return children if structure.kind == "list" else tuple(children)


def map_tree(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply a function to corresponding leaves of trees. Raises InputError when their structures differ."""
    leaves, structure = flatten(tree)
    columns = [leaves]
    for other in rest:
        found, theirs = flatten(other)
        if theirs != structure:
            paths = [", ".join(each.paths()) or "nothing" for each in (structure, theirs)]
            raise InputError(
                f"{user_source()}: the trees have different structures: one has {paths[0]}, another {paths[1]}.",
                hint="Pass trees with the same keys and lengths.",
            )
        columns.append(found)
    return unflatten(structure, [fn(*row) for row in zip(*columns, strict=True)])
