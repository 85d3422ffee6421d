"""Rules of the house that no tool knows: each is shown to catch what it is for, then applied."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("compute", "protocol", "privacy", "aggregation", "client_sdk", "simulation", "server", "cli")


def statistical_randomness(source: str) -> Iterator[int]:
    """Lines that reach `random` or `numpy.random`, by whatever alias."""
    tree = ast.parse(source)
    numpy_names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "numpy"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(a.name.split(".")[0] == "random" for a in names):
                yield node.lineno
            case ast.Import(names=names) if any(a.name.startswith("numpy.random") for a in names):
                yield node.lineno
            case ast.ImportFrom(module=str(module)) if module == "random" or module.startswith("numpy.random"):
                yield node.lineno
            case ast.ImportFrom(module="numpy", names=names) if any(a.name == "random" for a in names):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id=name), attr="random") if name in numpy_names:
                yield node.lineno
            case _:
                pass


def input_checks_by_assert(source: str) -> Iterator[int]:
    """Lines with an `assert`: it vanishes under `python -O`, so it may not guard anything."""
    yield from (node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert))


def code_from_data(source: str) -> Iterator[int]:
    """Lines that unpickle, or that call eval or exec."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(a.name in {"pickle", "marshal", "shelve", "dill"} for a in names):
                yield node.lineno
            case ast.ImportFrom(module="pickle" | "marshal" | "shelve" | "dill"):
                yield node.lineno
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                yield node.lineno
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                yield node.value.lineno
            case _:
                pass


def waits_at_import(source: str) -> Iterator[int]:
    """Lines outside of functions that ask how busy the machine is. Workers of one run ask at other moments, and tests
    whose names tell it differ from worker to worker.
    """
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        match node:
            case ast.Call(func=ast.Name(id="patience" | "slowness")):
                yield node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                left += [*node.decorator_list, *node.args.defaults]
                continue
            case ast.Lambda():
                continue
            case _:
                pass
        left += ast.iter_child_nodes(node)


RULES = {
    "no statistical randomness": (statistical_randomness, ("privacy",)),
    "no assert": (input_checks_by_assert, FOLDERS),
    "no code from data": (code_from_data, FOLDERS),
    "no waits at import": (waits_at_import, ("tests",)),
}
CAUGHT = {
    "no statistical randomness": [
        "import random",
        "from random import choice",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy as np\nx = np.random.rand(3)",
    ],
    "no assert": ["def f(x):\n    assert x > 0"],
    "no code from data": ["import pickle", "from pickle import loads", "eval('1')", "np.load(f, allow_pickle=True)"],
    "no waits at import": ["SLOW = patience(1)", '@mark("s", [patience(1)])\ndef test_it(s):\n    pass'],
}


@pytest.mark.parametrize(("rule", "source"), [(rule, source) for rule in CAUGHT for source in CAUGHT[rule]])
def test_the_rule_catches(rule: str, source: str) -> None:
    assert list(RULES[rule][0](source))


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds(rule: str) -> None:
    check, folders = RULES[rule]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in check(path.read_text(encoding="utf-8"))
    ]
    assert found == []


PLANTED = {
    "an upward import": ("protocol", "import coterie.client_sdk\n"),
    "an import between neighbours": ("protocol", "import coterie.compute\n"),
    "the server's libraries below the server": ("client_sdk/device", "import sqlalchemy\n"),
    "a training framework": ("compute", "import torch\n"),
    "a statistical generator among secrets": ("privacy/dp", "import random\n"),
    "a pass that knows layers": ("compute/passes", "import coterie.compute.nn\n"),
    "a rule that knows the table": ("compute/primitives", "import coterie.compute.table\n"),
    "an array function that knows gradients": ("compute/numpy", "import coterie.compute.autodiff\n"),
    "a layer that knows training": ("compute/nn", "import coterie.compute.training\n"),
    "a plan that knows what it was made of, for types alone": (
        "aggregation/plan",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import coterie.aggregation.experiment\n",
    ),
    "a row that knows who asks": ("server/store", "import coterie.server.auth\n"),
    "a part of the coordinator that knows the whole": ("server/jobs", "import coterie.server.coordinator\n"),
    "a module that no layer has": ("aggregation", "import math\n"),
}


def _named_modules() -> set[str]:
    """The modules inside the folders that the contracts name, as paths."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: set[str] = set()
    for contract in settings["tool"]["importlinter"]["contracts"]:
        found |= {*contract.get("source_modules", ()), *contract.get("forbidden_modules", ())}
        for container in contract.get("containers", ()):
            names = (name.strip(" ()") for layer in contract["layers"] for name in re.split(r"[:|]", layer))
            found |= {f"{container}.{name}" for name in names}
    inside = (name.removeprefix("coterie.") for name in found if name.startswith("coterie."))
    return {name.replace(".", "/") for name in inside} - {"calls", "draws", "errors", "faults", "randomness"}


def _lint_imports(root: Path, folder: str, source: str) -> subprocess.CompletedProcess[str]:
    """What import-linter says of a house with empty rooms but for one planted module."""
    package = root / "coterie"
    package.mkdir()
    (package / "__init__.py").touch()
    for leaf in ("calls", "draws", "errors", "faults", "randomness"):
        (package / f"{leaf}.py").touch()
    for name in (*FOLDERS, *_named_modules()):
        (package / name).mkdir(parents=True, exist_ok=True)
        for room in (package / name, *(package / name).parents):
            if room.is_relative_to(package):
                (room / "__init__.py").touch()
    (package / folder / "planted.py").write_text(source, encoding="utf-8")
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (root / "pyproject.toml").write_text(settings, encoding="utf-8")
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(no_cache=True))"
    )
    return subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)


@pytest.mark.parametrize("what", PLANTED)
def test_the_import_contracts_catch(what: str, tmp_path: Path) -> None:
    done = _lint_imports(tmp_path, *PLANTED[what])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "planted" in done.stdout


def test_the_import_contracts_let_a_downward_import_pass(tmp_path: Path) -> None:
    done = _lint_imports(tmp_path, "client_sdk/device", "import coterie.protocol\n")
    assert done.returncode == 0, done.stdout + done.stderr
