"""Running files in a bare ONNX Runtime, in a process that knows nothing of coterie."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.runtime.bare_process import run_script
from coterie.errors import InputError, InternalError

_SCRIPT = Path(__file__).with_name("bare.py")
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
    answer = run_script(_SCRIPT, folder)
    if "coterie" in answer["modules"]:
        raise InternalError("The process that was to run ONNX Runtime alone has loaded coterie.")
    return answer
