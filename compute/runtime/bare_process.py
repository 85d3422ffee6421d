"""A script with ONNX Runtime and NumPy alone, in a Python of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from coterie.errors import GraphRefused, InternalError

_PATIENCE_S = 3600.0


def run_script(script: Path, folder: Path) -> dict[str, Any]:
    """What a script prints last, one line of JSON, when it is given a folder.

    Raises GraphRefused (code ``bare_runtime``) for ``{"error": ...}``, or no answer within an hour; InternalError where
    the script itself fails.
    """
    # Without the script's own folder on the path, whose files are named as other people's modules may be.
    command = [sys.executable, "-P", str(script), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise GraphRefused(
            f"The bare ONNX Runtime did not answer within {_PATIENCE_S:.0f} s.",
            hint="Give fewer examples, or a smaller model.",
            code="bare_runtime",
        ) from error
    if done.returncode:
        told = next(iter(reversed(done.stderr.strip().splitlines())), "it said nothing")
        raise InternalError(f"The process of a bare ONNX Runtime ended with {done.returncode}: {told}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise GraphRefused(
            f"A bare ONNX Runtime does not run the file: {answer['error']}",
            hint="Check the model's inputs, and that this version of onnxruntime reads its operator set.",
            code="bare_runtime",
        )
    return answer
