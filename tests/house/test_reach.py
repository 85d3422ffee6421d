"""Nothing in compute/ is out of reach: the product or a public name of the compute core leads to every module.

A module is reached when what is reached imports it, at its top or inside a function; imports for types alone do not
count. A package that loads its names on first use leads to the home of each name that is asked of it.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("aggregation", "client_sdk", "server", "cli", "simulation", "privacy", "protocol")
API = ROOT / "tests" / "compute" / "public_api.txt"
CAPABILITIES = ROOT / "docs" / "capabilities.md"
CORE = "coterie.compute"
# Scripts that run in a process of their own, which holds neither this package nor what it imports: started by the path
# of their file, by the module behind.
RUN_BY_PATH = {
    f"{CORE}.export.bare": f"{CORE}.export.bare_runs",
    f"{CORE}.runtime.bare_inference": f"{CORE}.runtime.inference_metrics",
}


@dataclass(frozen=True)
class Module:
    """What is known of a module: the modules and names that it imports, and where its own names are loaded from."""

    wants: frozenset[tuple[str, str]]
    homes: Mapping[str, str]


def read(source: str, name: str) -> Module:
    """The module of this source. name: its own. Wanted are (module, name), the name empty where all of it is."""
    tree = ast.parse(source)
    wants: set[tuple[str, str]] = set()
    called: dict[str, str] = {}
    for node in _run(tree):
        if isinstance(node, ast.Import):
            wants |= {(alias.name, "") for alias in node.names}
            called |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            wants |= {(node.module, alias.name) for alias in node.names}
            called |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called:
            wants.add((called[node.value.id], node.attr))
    return Module(frozenset(wants), dict(_homes(tree, name)))


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree but for what stands under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for otherwise in node.orelse:
                yield from (otherwise, *_run(otherwise))
            continue
        yield from (node, *_run(node))


def _homes(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            table: dict[str, str | tuple[str, ...]] = ast.literal_eval(node.value)
            for key, value in table.items():
                # A name and its home, or a home and its names.
                pairs = [(key, value)] if isinstance(value, str) else [(each, key) for each in value]
                yield from (
                    (public, home if home.startswith("coterie.") else f"{name}.{home}") for public, home in pairs
                )


def reached(modules: Mapping[str, Module], wanted: Iterable[tuple[str, str]]) -> set[str]:
    """The modules that the wanted names lead to, with the packages that they lie in."""
    found: set[str] = set()
    asked: set[tuple[str, str]] = set()
    waiting = [*wanted]
    while waiting:
        want = waiting.pop()
        if want in asked:
            continue
        asked.add(want)
        module, name = want
        if module not in modules:
            parent, _, last = module.rpartition(".")
            waiting += [(parent, last)] if parent else []
            continue
        inner, home = f"{module}.{name}", modules[module].homes.get(name)
        waiting += [(inner, "")] if name and inner in modules else []
        waiting += [(home, name)] if home else []
        if module not in found:
            found.add(module)
            parent = module.rpartition(".")[0]
            waiting += [*modules[module].wants, *([(parent, "")] if parent else [])]
    return found


@cache
def product() -> Mapping[str, Module]:
    """All modules of the distribution."""
    files = {f"coterie.{path.stem}": path for path in (ROOT / "src" / "coterie").glob("*.py")}
    for folder in (*PRODUCT, "compute"):
        for path in (ROOT / folder).rglob("*.py"):
            files[".".join(("coterie", *path.relative_to(ROOT).with_suffix("").parts))] = path
    named = {name.removesuffix(".__init__"): path for name, path in files.items()}
    return {name: read(path.read_text(encoding="utf-8"), name) for name, path in named.items()}


def public() -> set[tuple[str, str]]:
    """The public names of the compute core: those of the frozen page, and those that a row of the capabilities says by
    their path; of a package that it names, all that the package loads.
    """
    modules = product()
    paths = {line.partition("(")[0] for line in API.read_text(encoding="utf-8").splitlines()}
    found = {(module, name) for module, _, name in (path.rpartition(".") for path in paths)}
    for row in re.findall(r"^\| [A-G]\d+ \|[^|]+\|([^|]+)\|", CAPABILITIES.read_text(encoding="utf-8"), re.MULTILINE):
        for path in re.findall(r"`((?:\w+\.)+\w+)`", row):
            full = f"{CORE}.{path.removeprefix('coterie.').removeprefix('compute.')}"
            module, _, name = full.rpartition(".")
            found |= {(module, name)} if module in modules else set()
            found |= {(full, each) for each in modules[full].homes} if full in modules else set()
    return found


def test_every_module_of_the_compute_core_is_reached() -> None:
    modules = product()
    parts = {(name, "") for name in modules if not name.startswith(CORE)}
    lost = {name for name in modules if name.startswith(CORE)} - reached(modules, parts | public())
    assert lost == set(RUN_BY_PATH), (
        "neither the product nor a public name leads to these modules: use them, make them public, or remove them"
    )


def test_a_script_is_run_by_the_module_that_is_said_to_run_it() -> None:
    for script, runner in RUN_BY_PATH.items():
        path = ROOT.joinpath(*runner.split(".")[1:]).with_suffix(".py")
        assert f'with_name("{script.rpartition(".")[2]}.py")' in path.read_text(encoding="utf-8")


def test_what_leads_to_a_module() -> None:
    sources = {
        "coterie": "",
        "coterie.lazy": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import coterie.typed\n"
        '_HOMES = {"a": "one", "b": "two"}',
        "coterie.lazy.one": "def f():\n    from coterie.inner import g",
        "coterie.lazy.two": "",
        "coterie.inner": "",
        "coterie.typed": "",
        "coterie.alias": "from coterie import lazy as other\nother.b",
    }
    modules = {name: read(source, name) for name, source in sources.items()}
    assert reached(modules, [("coterie.lazy", "")]) == {"coterie", "coterie.lazy"}
    assert reached(modules, [("coterie.lazy", "a")]) == {
        "coterie", "coterie.lazy", "coterie.lazy.one", "coterie.inner",
    }  # fmt: skip
    assert reached(modules, [("coterie.alias", "")]) == {
        "coterie", "coterie.alias", "coterie.lazy", "coterie.lazy.two",
    }  # fmt: skip
