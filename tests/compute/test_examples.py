"""The examples that need nothing but the compute core run as they stand, and learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["mindspore_style.py", "numpy_style.py"])
def test_an_example_runs_and_learns(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    told = re.findall(r"accuracy ([0-9.]+)", run.stdout)
    assert told, run.stdout
    assert float(told[-1]) > 0.85
