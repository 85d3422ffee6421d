"""The command line as a user meets it: a program in a process of its own, in an empty folder; and without the process,
which takes most of the time of a command that says something and ends.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.cli import main
from tests import prepared
from tests.prepared import Done

sys.path.insert(0, str(Path(__file__).parent))


Coterie = Callable[..., Done]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment without any of coterie's own settings, and with one thread for each program."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture
def coterie(tmp_path: Path, environment: dict[str, str]) -> Coterie:
    """Runs `coterie …` in the test's folder."""

    def run(*words: str, timeout: float = 120.0, cwd: Path = tmp_path, **more: str) -> Done:
        return prepared.run(words, cwd=cwd, env={**environment, **more}, timeout=timeout)

    return run


@pytest.fixture
def inside(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Coterie:
    """Runs `coterie …` in the test's folder as `coterie` does, but in this process."""
    for name in {*os.environ} - {*environment}:
        if not name.startswith("COTERIE_TESTS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", environment["COLUMNS"])

    def run(*words: str, cwd: Path = tmp_path, **more: str) -> Done:
        capsys.readouterr()
        known = {*sys.modules}
        with monkeypatch.context() as here:
            here.chdir(cwd)
            # What an experiment's file brings is gone after the command, as it would be with the process.
            here.setattr(sys, "path", [*sys.path])
            for name, value in more.items():
                here.setenv(name, value)
            try:
                code = main.run(words)
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
        for name in {*sys.modules} - known:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run
