"""The import rules of pyproject.toml hold, and would notice a breach."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS: dict[str, dict[str, Any]] = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    if "id" in contract
}
COMPILER = {"coterie.compute.ir", "coterie.compute.autodiff"}


def kept(contract: str, config: Path = ROOT / "pyproject.toml") -> bool:
    """Whether import-linter finds no import against this contract."""
    return lint_imports(config_filename=str(config), limit_to_contracts=(contract,), no_cache=True, no_logo=True) == 0


@pytest.mark.capability("A2")
@pytest.mark.parametrize("contract", [each for each in CONTRACTS if each.endswith("layers")])
def test_no_import_points_up(contract: str, tmp_path: Path) -> None:
    """Of the whole house and inside its folders, imports for types included."""
    assert len(CONTRACTS[contract]["layers"]) >= 4
    assert kept(contract)
    upside_down = reversed(CONTRACTS[contract]["layers"])
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = "".join(f'    "{layer}",\n' for layer in upside_down)
    start = text.index("layers = [", text.index(f'id = "{contract}"'))
    config = tmp_path / "pyproject.toml"
    config.write_text(text[:start] + f"layers = [\n{lines}]" + text[text.index("]", start) + 1 :], encoding="utf-8")
    assert not kept(contract, config)


def test_every_part_of_the_compiler_has_a_layer_of_its_own() -> None:
    """The folders that know each other are ordered part by part."""
    together = next(layer for layer in CONTRACTS["compute-layers"]["layers"] if ":" in layer).split(" : ")
    named = {name for layer in CONTRACTS["compiler-layers"]["layers"] for name in layer.split(" | ")}
    for folder in together:
        parts = {f"{folder}.{path.stem}" for path in (ROOT / "compute" / folder).glob("[!_]*") if path.suffix != ".pyc"}
        assert folder in named or (parts and parts <= named), (folder, parts - named)


@pytest.mark.capability("A14")
def test_the_compiler_is_a_base_of_its_own() -> None:
    """IR and autodiff know nothing of nn; compute knows nothing federated, which all lies above it or beside it."""
    contract, house = CONTRACTS["compiler-base"], CONTRACTS["layers"]["layers"]
    assert set(contract["source_modules"]) >= COMPILER and "coterie.compute.nn" in contract["forbidden_modules"]
    assert kept("compiler-base")
    level = next(index for index, layer in enumerate(house) if "compute" in layer)
    leaves = ["draws", "calls | randomness | faults", "errors", "version"]
    assert house[level] == "protocol | compute" and house[level + 1 :] == leaves
    assert kept("layers")


# Of the compute core, what stands beside its heart: tools for a prompt, numerical work, a face, and a trainer at home.
BESIDE_THE_HEART = {"interactive", "mindspore", "science", "training"}


@pytest.mark.capability("A2")
def test_the_heart_needs_no_tools_for_a_prompt_and_no_science(tmp_path: Path) -> None:
    """All of the compute core but what stands beside it is the heart, as is all that is federated."""
    contract = CONTRACTS["heart"]
    parts = {
        path.stem for path in (ROOT / "compute").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    heart = {f"coterie.compute.{part}" for part in parts - BESIDE_THE_HEART - {"__init__"}}
    federated = {f"coterie.{part}" for part in (
        "aggregation", "cli", "client_sdk", "privacy", "protocol", "server", "simulation"
    )}  # fmt: skip
    assert set(contract["source_modules"]) == heart | federated
    assert kept("heart")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    start = text.index("ignore_imports", text.index('id = "heart"'))
    config = tmp_path / "pyproject.toml"
    config.write_text(text[:start] + text[text.index("]\n", start) + 2 :], encoding="utf-8")
    assert not kept("heart", config)


def test_the_heart_loads_no_tools_for_a_prompt_and_no_science() -> None:
    """Names that are loaded on first use are no imports: so the whole heart is loaded, and what came with it read."""
    program = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for each in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        if ".migrations." not in each.name:  # which run at import, for a database
            importlib.import_module(each.name)
print(*(name for name in sys.modules if name.startswith(("coterie.compute.interactive", "coterie.compute.science"))))
"""
    heart = [each for each in CONTRACTS["heart"]["source_modules"] if each != "coterie.cli"]
    done = subprocess.run([sys.executable, "-c", program, *heart], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
