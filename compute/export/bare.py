"""Run ONNX files with ONNX Runtime and NumPy alone. A script for a process of its own (``python -P bare.py FOLDER``):
it imports nothing of coterie, so what it shows holds for whoever has the files and no coterie.

FOLDER/request.json: ``files``, their names; ``inputs`` and ``outputs``, names of theirs (no outputs: all); ``repeats``,
how many timed runs of one batch; ``threads`` of a session. FOLDER/feeds.npz: ``input_<i>``, batches of input i,
[batches, *shape]. FOLDER/outputs.npz gets ``file_<j>_output_<k>``, [batches, *shape]; standard output one line of JSON,
which is ``{"error": ...}`` where ONNX Runtime does not load or run a file.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

WARM = 3
RUNTIME: Any = onnxruntime


def session(path: Path, threads: int) -> Any:
    """A session with every default but the number of threads."""
    options = RUNTIME.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return RUNTIME.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def dense(result: Any) -> Any:
    """An array of numbers; of what classifiers of scikit-learn give, a dictionary for each row, its values side by
    side.
    """
    by_row = not hasattr(result, "dtype")
    made: Any = np.array([[*row.values()] for row in result], np.float32) if by_row else result
    if made.dtype.kind not in "biuf":
        raise ValueError("one of its outputs is no array of numbers")
    return made


def timed(sessions: list[Any], feeds: list[dict[str, Any]], repeats: int) -> list[list[float]]:
    """Milliseconds of every run; the files take turns, so that what slows the machine slows all of them."""
    spent: list[list[float]] = [[] for _ in sessions]
    for turn in range(WARM + repeats):
        given = feeds[turn % len(feeds)]
        for index, one in enumerate(sessions):
            start = time.perf_counter()
            one.run(None, given)
            if turn >= WARM:
                spent[index].append((time.perf_counter() - start) * 1000.0)
    return spent


def answer(folder: Path) -> dict[str, Any]:
    """What the request that lies in a folder asks for."""
    request: dict[str, Any] = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    with np.load(folder / "feeds.npz", allow_pickle=False) as held:
        columns = [held[f"input_{index}"] for index in range(len(request["inputs"]))]
    count = len(columns[0]) if columns else 1
    feeds = [
        {name: column[batch] for name, column in zip(request["inputs"], columns, strict=True)} for batch in range(count)
    ]
    sessions = [session(folder / name, request["threads"]) for name in request["files"]]
    names: list[list[str]] = [
        request["outputs"] or [str(output.name) for output in one.get_outputs()] for one in sessions
    ]
    outputs: dict[str, Any] = {}
    for index, one in enumerate(sessions):
        results = [one.run(names[index], given) for given in feeds]
        for position in range(len(results[0])):
            outputs[f"file_{index}_output_{position}"] = np.stack([dense(result[position]) for result in results])
    np.savez(folder / "outputs.npz", **outputs)
    return {
        "onnxruntime": str(RUNTIME.__version__),
        "names": names,
        "milliseconds": timed(sessions, feeds, request["repeats"]),
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    }


def main(folder: Path) -> None:
    """Print the answer, or what ONNX Runtime says instead."""
    try:
        told = answer(folder)
    except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
        told = {"error": next(iter(str(error).strip().splitlines()), type(error).__name__)}
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
