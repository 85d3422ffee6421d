"""What a run without training has found: the answer to a query, or to a survey."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt

from coterie.client_sdk.control.control import Run
from coterie.errors import ExperimentError
from coterie.protocol.tensors import read_file


def committed_answer(
    run: Run, rounds: int, *, code: str, hint: str, timeout_s: float | None
) -> dict[str, npt.NDArray[Any]]:
    """The tensors of the last version, once the run has finished and so many rounds of it were committed.

    Raises Unreachable (``timeout``) when that takes longer than ``timeout_s``; ExperimentError of this code and hint
    for rounds that are missing; RemoteError.
    """
    history = run.wait(timeout_s)
    done = sum(record.state == "committed" for record in history.rounds)
    if done < rounds:
        cause = next((record.cause for record in history.rounds if record.cause), history.reason)
        raise ExperimentError(
            f"Only {done} of the {rounds} rounds of {run.name!r} were committed ({cause}).", hint=hint, code=code
        )
    with TemporaryDirectory() as folder:
        return read_file(run.download(Path(folder) / "answer", version="latest", form="weights"))
