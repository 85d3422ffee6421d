"""A worker process: ``python -m coterie.simulation.engines.worker FOLDER``.

It reads one job per line on standard input and answers with one line on standard output; arrays lie in the folder, in
memory that both sides see. When standard input ends, so does the worker; if the other side vanished without clearing
the folder away, the worker does.
"""

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.aggregation.plan.bundle import Plan, load
from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.trainers.base import Rows
from coterie.errors import CoterieError
from coterie.protocol.arrays import ArraysByName
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines import shared
from coterie.simulation.engines.job import JsonObject, OwnRows, error_answer, perform
from coterie.simulation.engines.naming import resolve_trainer
from coterie.simulation.work import Workplace


class Worker:
    """What a worker keeps between jobs: the plan, the trainer, and the version that it read last."""

    def __init__(self, folder: Path, trainer: str) -> None:
        bundle = load(folder / "plan")
        plan = Plan(Manifest.from_bytes(bundle.manifest), bundle.graphs)
        frozen = folder / "frozen"
        self._folder = folder
        self._workplace = Workplace(plan, shared.read(frozen) if frozen.exists() else {}, resolve_trainer(trainer))
        self._weights: tuple[str, ArraysByName] = ("", {})
        self._own = OwnRows(plan.manifest)

    def answer(self, job: JsonObject) -> JsonObject:
        """Do one job, leave its tensors where it says, and answer."""
        if self._weights[0] != job["weights"]:
            self._weights = (job["weights"], shared.read(self._folder / job["weights"]))
        state = shared.read(self._folder / job["state"]) if job["state"] else {}
        assignment = Assignment(**job["assignment"])
        try:
            rows = self._rows(job)
            answer, tensors = perform(
                self._workplace, job["kind"], job["number"], rows, state, self._weights[1], assignment
            )
            # Where there is none too: what lies there is of another client.
            shared.write(self._folder / job["out"], tensors)
        except CoterieError as error:
            return error_answer(error)
        return answer

    def _rows(self, job: JsonObject) -> Rows:
        """Rows that the other side put into shared memory, or a source that this side reads itself."""
        if job["rows"]:
            return shared.read(self._folder / job["rows"])
        return self._own.of(job["source"], job["kind"])


def main() -> None:
    """Work until standard input ends."""
    folder = Path(sys.argv[1])
    # Whatever a trainer prints must not stand between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    # Whoever vanishes while this starts, or while a job is done, hears no answer.
    with suppress(BrokenPipeError):
        try:
            worker = Worker(folder, sys.argv[2])
        except CoterieError as error:
            say(error_answer(error))
            return
        say({"ready": os.getpid()})
        for line in sys.stdin:
            job = json.loads(line)
            if job["kind"] == "end":
                return
            say(worker.answer(job))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
