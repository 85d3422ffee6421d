"""Measure an inference in a process of its own. A script (``python -P bare_inference.py FOLDER``) of ONNX Runtime and
NumPy alone: what it finds of memory is theirs and the model's, not coterie's.

FOLDER/model.onnx is the model. FOLDER/request.json: ``inputs``, names in order; ``runs``; ``threads``; ``energy``, the
files that count microjoules. FOLDER/feeds.npz: ``input_<i>``. Standard output gets one line of JSON, which is
``{"error": ...}`` where ONNX Runtime does not load or run the model.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

_WARM = 3
_RUNTIME: Any = onnxruntime


def resident(field: str) -> int | None:
    """Bytes of a field of /proc/self/status: VmRSS now, VmHWM at the most; None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def microjoules(files: list[str]) -> int:
    """What the counters say together."""
    return sum(int(Path(file).read_text(encoding="ascii")) for file in files)


def measured(folder: Path) -> dict[str, Any]:
    """What the request asks for."""
    request: dict[str, Any] = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    with np.load(folder / "feeds.npz", allow_pickle=False) as held:
        feeds = {name: held[f"input_{index}"] for index, name in enumerate(request["inputs"])}
    options = _RUNTIME.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    options.log_severity_level = 3
    empty = resident("VmRSS")
    start = time.perf_counter()
    session = _RUNTIME.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter() - start
    first = session.run(None, feeds)
    for _ in range(_WARM):
        session.run(None, feeds)
    spent: list[float] = []
    again = first
    energy, began = microjoules(request["energy"]), time.perf_counter()
    for _ in range(request["runs"]):
        start = time.perf_counter()
        again = session.run(None, feeds)
        spent.append((time.perf_counter() - start) * 1000.0)
    seconds, used = time.perf_counter() - began, microjoules(request["energy"]) - energy
    peak = resident("VmHWM")
    return {
        "runtime": str(_RUNTIME.__version__),
        "load_ms": loaded * 1000.0,
        "milliseconds": spent,
        "memory_bytes": None if peak is None or empty is None else max(0, peak - empty),
        # A counter that has begun anew says nothing.
        "watts": used / 1e6 / seconds if request["energy"] and used >= 0 else None,
        "finite": all(bool(np.isfinite(value).all()) for value in first if np.asarray(value).dtype.kind == "f"),
        "repeatable": all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)),
    }


def main(folder: Path) -> None:
    """Print what was measured, or what ONNX Runtime says instead."""
    try:
        told = measured(folder)
    except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
        told = {"error": next(iter(str(error).strip().splitlines()), type(error).__name__)}
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
