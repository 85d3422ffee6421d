"""How little each edition of coterie loads, and that the smallest client trains as the whole one does."""

import json
import platform
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from sdk_kit import counting, experiment, rows, save_rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.fedprox import FedProx
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn, optim
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = ROOT / "examples" / "minimal_client.py"
# Installed packages that a process may not import are no packages to it.
ALONE = """
import importlib.abc, runpy, sys
import numpy, onnxruntime
allowed = {"numpy", "onnxruntime", "cryptography", "cffi", "_cffi_backend", "coterie"} | set(sys.stdlib_module_names)
class Wall(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Wall())
before = set(sys.modules)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


WORDS = ("plan", "weights.safetensors", "rows.npz", "update.npz")


def saved(tmp_path: Path, wanted: Experiment, seed: int) -> None:
    """What the minimal client reads."""
    compiled = compile_plan(wanted)
    compiled.plan.save(tmp_path / "plan")
    (tmp_path / "weights.safetensors").write_bytes(compiled.initial_bytes)
    save_rows(tmp_path / "rows.npz", rows(53, seed))


def minimal(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    words = [str(tmp_path / name) for name in WORDS]
    command = [sys.executable, "-c", ALONE, str(MINIMAL), *words, "--seed", "7"]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60))


WITH_DROPOUT = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


@pytest.mark.capability("G16")
def test_a_client_of_numpy_onnxruntime_and_cryptography_alone_makes_the_same_update(tmp_path: Path) -> None:
    """Adam, dropout from the task's seed, a proximal term, and fewer steps than the epochs have."""
    wanted = experiment(model=WITH_DROPOUT, optimizer=optim.adam(0.01), algorithm=FedProx(0.1), epochs=2, max_steps=9)
    saved(tmp_path, wanted, seed=3)
    done = minimal(tmp_path)
    assert done.returncode == 0, done.stderr
    compiled = compile_plan(wanted)
    task = LocalTask(experiment="x", round=1, seed=7)
    work = LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows(53, 3))
    result = PlanTrainer().train(work)
    with np.load(tmp_path / "update.npz") as update:
        assert set(update.files) == {*result.sections, "weight", "steps"}
        assert (int(update["weight"]), int(update["steps"])) == (result.weight, result.steps)
        for name, value in result.sections.items():
            assert update[name].tobytes() == value.tobytes() and np.any(value)


@pytest.mark.parametrize("absent", ["plan/manifest.json", "plan/train.onnx", *WORDS[1:3]])
def test_the_minimal_client_names_a_file_that_is_not_there(tmp_path: Path, absent: str) -> None:
    saved(tmp_path, experiment(), seed=3)
    (tmp_path / absent).unlink()
    done = minimal(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.startswith(f"{tmp_path / absent}: No such file or directory. ") and "Traceback" not in done.stderr
    )


def test_the_minimal_client_refuses_what_it_leaves_out() -> None:
    manifest = compile_plan(experiment(algorithm=counting())).plan.manifest
    with pytest.raises(SystemExit, match="state between rounds; the minimal client does without"):
        runpy.run_path(str(MINIMAL))["refuse"](json.loads(manifest.data))


# What tests/house/test_layers.py says of servers and of the command line is not said again.
NEEDED = {"numpy", "onnxruntime", "onnx", "pydantic", "httpx", "cryptography", "zstandard"}
ABSENT = {"typer", "rich", "fastapi", "sqlalchemy", "uvicorn", "alembic", "starlette"}


@pytest.mark.capability("G16")
def test_the_edition_for_devices_loads_what_it_says() -> None:
    code = "import sys, coterie.client_sdk.device.agent; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience(60))
    loaded = set(done.stdout.split())
    assert NEEDED <= loaded and not ABSENT & loaded


def required(name: str, extra: str = "") -> list[str]:
    """What a package needs here, with an extra of it or without."""
    wanted = [Requirement(text) for text in distribution(name).requires or ()]
    return [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": extra})]


def megabytes(names: Iterable[str]) -> float:
    """The files of packages and of all that they need, compiled caches left out."""
    found: dict[str, int] = {}
    waiting = [*names]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            files = [Path(str(file.locate())) for file in distribution(name).files or () if file.suffix != ".pyc"]
            found[name] = sum(file.stat().st_size for file in files if file.exists())
            waiting += required(name)
    return sum(found.values()) / 1e6


EDITIONS = {
    "ultra-light": ["numpy", "onnxruntime"],
    "device": sorted(NEEDED),
    "plain": required("coterie"),
    "server": required("coterie", "server"),
}


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the sizes said are of x86-64 Linux"
)
@pytest.mark.parametrize("edition", EDITIONS)
def test_an_edition_takes_about_as_much_room_as_is_said(edition: str) -> None:
    """Of the versions that are installed here, which need not be those that were measured."""
    page = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")
    (said,) = re.findall(rf"^\| {edition} \|.*\| about (\d+) MB \|", page, re.MULTILINE)
    assert megabytes(EDITIONS[edition]) == pytest.approx(float(said), rel=0.2)
