"""What an import costs: nobody pays for libraries that another part needs."""

import os
import subprocess
import sys
import time

import pytest

SERVER_ONLY = {"aiosqlite", "alembic", "fastapi", "obstore", "sqlalchemy", "starlette", "structlog", "uvicorn"}
PEOPLE_ONLY = {"rich", "typer"}
RESEARCH_ONLY = {"onnx", "sklearn", "scipy", "torch"}

# Module → top-level libraries that importing it must not bring in.
LIGHT = {
    "coterie.errors": {"numpy", "pydantic", *SERVER_ONLY, *PEOPLE_ONLY, *RESEARCH_ONLY},
    "coterie.protocol.update": {"onnxruntime", "httpx", *SERVER_ONLY, *PEOPLE_ONLY, *RESEARCH_ONLY},
    "coterie.compute.nn": {"onnxruntime", "pydantic", "httpx", *SERVER_ONLY, *PEOPLE_ONLY, "torch", "sklearn"},
    "coterie.client_sdk.device.device": {*SERVER_ONLY, *PEOPLE_ONLY, "scipy", "sklearn", "torch"},
    "coterie.client_sdk.control.control": {*SERVER_ONLY, *PEOPLE_ONLY, "sklearn", "torch"},
    "coterie.simulation": {*SERVER_ONLY, *PEOPLE_ONLY, "sklearn", "torch"},
    "coterie.cli.main": {"numpy", "pydantic", "onnxruntime", "httpx", "rich", *SERVER_ONLY, *RESEARCH_ONLY},
}


@pytest.mark.parametrize("module", LIGHT)
def test_an_import_brings_in_no_more_than_its_part_needs(module: str) -> None:
    program = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & LIGHT[module] == set()


def test_nothing_touches_the_network_or_the_disk_at_import() -> None:
    program = """
import os, sys
def refuse(event, args):
    if event in ("socket.connect", "socket.bind", "subprocess.Popen", "os.mkdir"):
        raise SystemExit(f"{event} {args}")
    if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if args[0] != os.devnull:
            raise SystemExit(f"{event} {args}")
import importlib
sys.addaudithook(refuse)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *LIGHT, "coterie.server.serve"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def _seconds(*words: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def test_help_is_fast() -> None:
    """`coterie --help` takes at most four times `import numpy`: the best of several, taken in turns."""
    pairs = [(_seconds("-m", "coterie.cli.main", "--help"), _seconds("-c", "import numpy")) for _ in range(5)]
    assert min(ours for ours, _ in pairs) <= 4 * min(theirs for _, theirs in pairs)
