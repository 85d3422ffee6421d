"""The public names are the frozen list, each comes from where type checkers think it does, and each is explained."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import coterie

SOURCE = Path(__file__).resolve().parents[2] / "src" / "coterie" / "__init__.py"
PUBLIC = [
    "Control",
    "CoterieError",
    "DataSchema",
    "Device",
    "DevicePolicy",
    "Experiment",
    "ExternalModel",
    "Feature",
    "FedAvg",
    "FedProx",
    "History",
    "Label",
    "RoundPolicy",
    "RoundRecord",
    "SecureAggregation",
    "SigningKey",
    "UserLevel",
    "VerticalExperiment",
    "dirichlet",
    "iid",
    "load_data",
    "server_sgd",
    "simulate",
    "split",
    "submit",
]


def _declared() -> dict[str, str]:
    """Name → module, as `if TYPE_CHECKING` declares it."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_the_public_names_are_the_frozen_list() -> None:
    assert coterie.__all__ == PUBLIC
    assert set(_declared()) == set(PUBLIC)
    assert set(PUBLIC) <= set(dir(coterie))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_what_type_checkers_think(name: str) -> None:
    value = getattr(coterie, name)
    assert value is getattr(import_module(_declared()[name]), name)
    assert inspect.isclass(value) or isinstance(value, FunctionType)
    assert (inspect.getdoc(value) or "").strip(), f"coterie.{name} has no docstring"


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        coterie.__getattr__("nonsense")


def test_importing_coterie_imports_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import coterie; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith("coterie")} == {"coterie", "coterie.version"}
    assert "numpy" not in done.stdout.split()


@pytest.mark.parametrize("package", ["coterie", "coterie.simulation", "coterie.client_sdk"])
def test_no_submodule_hides_a_public_name(package: str) -> None:
    """A lazily loaded name is looked up only while no submodule of that name has been loaded."""
    module = import_module(package)
    folder = Path(str(module.__file__)).parent
    submodules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert submodules & set(module.__all__) == set()
