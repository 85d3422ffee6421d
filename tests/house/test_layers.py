"""The import rules of pyproject.toml hold, and would notice a breach."""

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
    leaves = ["draws", "randomness | faults", "errors", "version"]
    assert house[level] == "protocol | compute" and house[level + 1 :] == leaves
    assert kept("layers")
