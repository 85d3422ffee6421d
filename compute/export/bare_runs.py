"""Running files in a bare ONNX Runtime, in a process that knows nothing of coterie."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import GraphRefused, InputError, InternalError

_SCRIPT = Path(__file__).with_name("bare.py")
_PATIENCE_S = 3600.0
ModelFile = bytes | Path


@dataclass(frozen=True, kw_only=True)
class BareRun:
    """What one file did. outputs: by name, [batches, *shape]. milliseconds: of each timed run of one batch. runtime:
    the version of ONNX Runtime.
    """

    outputs: Mapping[str, NDArray]
    milliseconds: tuple[float, ...]
    runtime: str


def run_bare(
    files: Sequence[ModelFile],
    batches: Sequence[Mapping[str, NDArray]],
    *,
    outputs: Sequence[str] = (),
    repeats: int = 0,
    threads: int = 1,
) -> list[BareRun]:
    """What each of these ONNX files makes of the batches, in ONNX Runtime on the CPU and nothing else.

    files: bytes, or paths of files whose weights lie beside them. batches: arrays by input name, at least one batch;
    all files have the same inputs. outputs: names of those that are wanted, all where none is named; dictionaries by
    row, which classifiers of scikit-learn give, become arrays. repeats: how many runs of one batch are timed; the files
    take turns.

    The process is a Python of its own; that no module of coterie is in it is checked. Raises GraphRefused (code
    ``bare_runtime``) when ONNX Runtime refuses a file or a batch, InputError for no batches.
    """
    if not batches:
        raise InputError("run_bare: there is no batch to run.", hint="Give at least one.")
    with tempfile.TemporaryDirectory(prefix="coterie-bare-") as made:
        folder = Path(made)
        names = [_placed(file, folder / f"{index}.onnx") for index, file in enumerate(files)]
        inputs = list(batches[0])
        columns = {f"input_{i}": np.stack([batch[name] for batch in batches]) for i, name in enumerate(inputs)}
        np.savez(folder / "feeds.npz", **columns)  # pyright: ignore[reportArgumentType]  its stub forgets keywords
        request = {"files": names, "inputs": inputs, "outputs": list(outputs), "repeats": repeats, "threads": threads}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        answer = _answered(folder)
        with np.load(folder / "outputs.npz", allow_pickle=False) as held:
            return [
                BareRun(
                    outputs={name: held[f"file_{index}_output_{at}"] for at, name in enumerate(answer["names"][index])},
                    milliseconds=tuple(answer["milliseconds"][index]),
                    runtime=answer["onnxruntime"],
                )
                for index in range(len(files))
            ]


def infer_bare(model: ModelFile, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The outputs of one file for one batch, by name; see :func:`run_bare`."""
    (run,) = run_bare([model], [feeds])
    return {name: values[0] for name, values in run.outputs.items()}


def _placed(file: ModelFile, path: Path) -> str:
    """What the request calls a file: its bytes are written into the folder; a path stays where its weights are."""
    if isinstance(file, Path):
        return str(file.resolve())
    path.write_bytes(file)
    return path.name


def _answered(folder: Path) -> dict[str, Any]:
    # Without the script's own folder on the path, whose files are named as other people's modules may be.
    command = [sys.executable, "-P", str(_SCRIPT), str(folder)]
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
    if "coterie" in answer["modules"]:
        raise InternalError("The process that was to run ONNX Runtime alone has loaded coterie.")
    return answer
