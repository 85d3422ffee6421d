"""Different things have different names."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "privacy", "aggregation", "client_sdk", "simulation", "server", "cli")
FOLDERS = (*PACKAGES, "benchmarks", "tests")
SHORT = frozenset(("Rule", "Phase", "Parts", "Shares"))
# A public name → why several classes or aliases may have it, in one sentence.
SHARED: Mapping[str, str] = {}


def type_names(source: str) -> Iterator[str]:
    """The classes and other names of types that a module makes."""
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def public_classes(source: str) -> Iterator[str]:
    """The classes without a leading underscore that a module defines, at whatever depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def public_aliases(source: str) -> Iterator[str]:
    """The names in capitals and small letters, without a leading underscore, that a module gives to types.

    An assignment to such a name at the top of a module, or in a block there, is an alias, whatever expression stands on
    its right; but a call makes a new object (a type variable, a column's type) and no other name for a type.
    """
    for node in _statements(ast.parse(source).body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_alias = not isinstance(value, ast.Call | ast.Constant)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                is_alias = ast.unparse(annotation).split(".")[-1] == "TypeAlias"
            case _:
                continue
        if is_alias and name[0].isupper() and (len(name) == 1 or not name.isupper()):
            yield name


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those within `if`, `try` and `with` among them."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, block, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def modules(folders: Sequence[str]) -> Mapping[str, str]:
    """The modules of these folders: path from the root → source."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "compute" not in path.relative_to(ROOT).parts
    }


def breaches(sources: Mapping[str, str], shared: Mapping[str, str]) -> list[str]:
    """Names of several public classes or aliases that ``shared`` does not explain, and entries of it that explain
    nothing.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for name in (*public_classes(source), *public_aliases(source)):
            homes[name].append(path)
    several = {name: paths for name, paths in homes.items() if len(paths) > 1}
    return [
        *(f"{name} is defined in {', '.join(paths)}" for name, paths in several.items() if name not in shared),
        *(f"{name} is listed as shared and is not" for name in shared if name not in several),
        *(
            f"{name} is listed as shared without a reason"
            for name, reason in shared.items()
            if not reason.endswith(".")
        ),
    ]


def test_every_way_of_naming_a_type_is_found() -> None:
    source = "class Rule: ...\nPhase = int\nParts: object = int\nShares: type = int\nfrom elsewhere import Other\n"
    assert sorted(type_names(source)) == ["Parts", "Phase", "Rule", "Shares"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Kind = Literal['a', 'b']", ["Kind"]),
        ("Call = Callable[[int], str]", ["Call"]),
        ("Id = int | str", ["Id"]),
        ("Id: TypeAlias = 'int'", ["Id"]),
        ("Id: typing.TypeAlias = int", ["Id"]),
        ("Id = int", ["Id"]),
        ("if TYPE_CHECKING:\n    Id = int", ["Id"]),
        ("try:\n    pass\nexcept ImportError:\n    Id = int", ["Id"]),
        ("Item = TypeVar('Item')", []),
        ("Codecs: Mapping[str, int] = {}", []),
        ("LIMIT = limits['most']", []),
        ("def make():\n    Id = int", []),
    ],
)
def test_every_public_alias_is_found(source: str, expected: Sequence[str]) -> None:
    assert list(public_aliases(source)) == expected


def test_a_short_name_is_that_of_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path, source in modules(FOLDERS).items():
        for name in SHORT.intersection(type_names(source)):
            homes[name].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_public_class_or_alias_shares_its_name_with_no_other() -> None:
    sources = modules(PACKAGES)
    assert len(sources) > 400, "the folders' modules are not where this rule looks for them"
    assert breaches(sources, SHARED) == []


@pytest.mark.parametrize(
    ("sources", "shared", "expected"),
    [
        ({"a.py": "class Head: ...", "b.py": "class Head: ..."}, {}, ["Head is defined in a.py, b.py"]),
        ({"a.py": "class Head: ...", "b.py": "class Head: ..."}, {"Head": "One is the other's twin."}, []),
        ({"a.py": "if True:\n    class Head: ...", "b.py": "class Head: ..."}, {}, ["Head is defined in a.py, b.py"]),
        ({"a.py": "class Head: ..."}, {"Head": "It was two."}, ["Head is listed as shared and is not"]),
        (
            {"a.py": "class Head: ...", "b.py": "class Head: ..."},
            {"Head": ""},
            ["Head is listed as shared without a reason"],
        ),
        ({"a.py": "class _Head: ...", "b.py": "class _Head: ..."}, {}, []),
        ({"a.py": "class Head: ...", "b.py": "Head = int | str"}, {}, ["Head is defined in a.py, b.py"]),
        ({"a.py": "Head: TypeAlias = int", "b.py": "Head = Row"}, {}, ["Head is defined in a.py, b.py"]),
        ({"a.py": "Head = Sequence[int]", "b.py": "from a import Head"}, {}, []),
        ({"a.py": "_Head = Sequence[int]", "b.py": "_Head = Sequence[str]"}, {}, []),
    ],
    ids=[
        "two",
        "two_explained",
        "within_a_block",
        "entry_of_none",
        "entry_without_reason",
        "private",
        "class_and_alias",
        "two_aliases",
        "imported_alias",
        "private_aliases",
    ],
)
def test_a_breach_is_found(sources: Mapping[str, str], shared: Mapping[str, str], expected: Sequence[str]) -> None:
    assert breaches(sources, shared) == expected
