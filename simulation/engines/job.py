"""What is asked of a worker in another process, and what it answers: JSON and tensors, nothing else."""

import traceback
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.holdout import split
from coterie.client_sdk.device.trainers.base import Rows
from coterie.client_sdk.rows.loading import load_rows
from coterie.compute.data.streamed_rows import StreamedRows
from coterie.errors import CoterieError, RemoteError
from coterie.protocol.arrays import ArraysByName, FloatArrays
from coterie.simulation.assignment import Assignment
from coterie.simulation.work import ClientEvaluation, Trained, Workplace

JsonObject = dict[str, Any]

_UPDATE = "update"
_SECTION, _STATE = "section/", "state/"


def perform(
    workplace: Workplace,
    kind: str,
    number: int,
    rows: Rows,
    state: FloatArrays,
    weights: FloatArrays,
    assignment: Assignment,
) -> tuple[JsonObject, ArraysByName]:
    """Do one job. The answer as JSON values and the tensors that go with it; an error of coterie's is an answer too."""
    try:
        if kind == "train":
            return _pack(workplace.train(number, rows, state, weights, assignment))
        measured = workplace.evaluate(number, rows, state, weights, assignment)
        answer = {"number": number, "size": measured.size, "refused": measured.refused}
        return answer, {_UPDATE: np.frombuffer(measured.update, np.uint8)}
    except CoterieError as error:
        return error_answer(error), {}
    except Exception as error:  # of a trainer of the user's own, whose classes the other side need not have
        told = RemoteError(
            f"Client {number} failed in a worker: {type(error).__name__}: {error}",
            hint="The traceback is below; engine='threads' raises the error itself.",
            code="worker_failed",
        )
        told.add_note("".join(traceback.format_exception(error)))
        return error_answer(told), {}


class OwnRows:
    """Rows that a worker reads itself. A data set is gone over once: what is kept of it is small."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._streams: dict[str, StreamedRows] = {}

    def of(self, source: str, kind: str) -> Rows:
        """The rows that a job is about. Raises DataError."""
        read = self._streams.get(source) or load_rows(source, self._manifest.schema)
        if isinstance(read, StreamedRows):
            self._streams[source] = read
        train, held_out = split(read, self._manifest.training.holdout)
        return train if kind == "train" else held_out


def _pack(trained: Trained) -> tuple[JsonObject, ArraysByName]:
    tensors: dict[str, NDArray[Any]] = {_SECTION + name: vector for name, vector in trained.sections.items()}
    tensors |= {_STATE + name: array for name, array in trained.state.items()}
    if trained.update is not None:
        tensors[_UPDATE] = np.frombuffer(trained.update, np.uint8)
    answer: JsonObject = {
        "number": trained.number,
        "task": trained.task,
        "weight": trained.weight,
        "steps": trained.steps,
        "size": trained.size,
        "loss": trained.loss,
        "refused": trained.refused,
        "diverged": trained.diverged,
        "slices": {name: [list(pair) for pair in slices] for name, slices in trained.slices.items()},
    }
    return answer, tensors


def trained_of(answer: JsonObject, tensors: ArraysByName) -> Trained:
    """Read the answer to a training job. The sections are views of ``tensors``; state and bytes are copies."""
    told: JsonObject = answer | {
        "slices": {n: tuple((a, b) for a, b in pairs) for n, pairs in answer["slices"].items()}
    }
    return Trained(
        **told,
        sections={n.removeprefix(_SECTION): array for n, array in tensors.items() if n.startswith(_SECTION)},
        update=tensors[_UPDATE].tobytes() if _UPDATE in tensors else None,
        state={n.removeprefix(_STATE): array.copy() for n, array in tensors.items() if n.startswith(_STATE)},
    )


def measured_of(answer: JsonObject, tensors: ArraysByName) -> ClientEvaluation:
    """Read the answer to an evaluation job."""
    return ClientEvaluation(**answer, update=tensors[_UPDATE].tobytes())


def raise_reported(answer: JsonObject) -> None:
    """Raise the error that an answer tells of, of the class that it had."""
    told = answer.get("error")
    if told is None:
        return
    kind = cast(object, getattr(errors, told["class"], None))
    chosen = kind if isinstance(kind, type) and issubclass(kind, CoterieError) else errors.InternalError
    error = chosen(told["message"], hint=told["hint"], code=told["code"], **told["details"])
    for note in told["notes"]:
        error.add_note(note)
    raise error


def error_answer(error: CoterieError) -> JsonObject:
    """An error as an answer, which `raise_reported` raises again."""
    told = {
        "class": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "code": error.reason,
        "details": {name: value for name, value in error.details.items() if isinstance(value, str | int | float)},
        "notes": list(getattr(error, "__notes__", ())),
    }
    return {"error": told}
