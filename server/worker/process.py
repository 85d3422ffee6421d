"""The worker process: does the numeric jobs, and nothing else. It opens no database, listens to nobody but the
coordinator that started it, and
ends with it: when its standard input closes it exits at once, whatever it is doing.

One JSON object per line: ``{"job": name, "arguments": {...}}`` in, ``{"result": {...}}`` or ``{"error": {...}}`` out.
While a job runs an empty line says every second that the process lives.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from coterie.errors import CoterieError

ALIVE: Final = b"\n"
BEAT_S: Final = 1.0
WorkFunction = Callable[[Mapping[str, Any]], dict[str, Any]]


def _warm(_arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.aggregation import aggregate, evaluate

    return {"ready": [aggregate.__name__, evaluate.__name__]}


def _aggregate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.rounds import aggregate_job

    return aggregate_job(arguments)


def _accumulate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.rounds import accumulate_job

    return accumulate_job(arguments)


def _evaluate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.rounds import evaluate_job

    return evaluate_job(arguments)


def _secure_sum(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.secure import sum_job

    return sum_job(arguments)


def _unmask(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.secure import unmask_job

    return unmask_job(arguments)


def _secure_aggregate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.secure import secure_aggregate_job

    return secure_aggregate_job(arguments)


def _secure_evaluation(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.secure import secure_evaluation_job

    return secure_evaluation_job(arguments)


def _delta(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from coterie.server.worker.delta import delta_job

    return delta_job(arguments)


JOBS: Final[Mapping[str, WorkFunction]] = {
    "warm": _warm,
    "aggregate": _aggregate,
    "accumulate": _accumulate,
    "evaluate": _evaluate,
    "delta": _delta,
    "secure_sum": _secure_sum,
    "unmask": _unmask,
    "secure_aggregate": _secure_aggregate,
    "secure_evaluation": _secure_evaluation,
}


def perform(line: str) -> dict[str, Any]:
    """The answer to one line of input."""
    try:
        request = json.loads(line)
        return {"result": JOBS[request["job"]](request["arguments"])}
    except CoterieError as error:
        return {"error": {"code": error.reason, "message": error.message, "final": True}}
    except Exception as error:
        # A worker outlives a job that fails; the coordinator decides whether to try again.
        return {"error": {"code": "internal", "message": f"{type(error).__name__}: {error}", "final": False}}


def _read(lines: "queue.SimpleQueue[str]", source: TextIO) -> None:
    for line in source:
        lines.put(line)
    os._exit(0)


def beat(answers: TextIO, done: threading.Event) -> None:
    """Say again and again that the process lives, until the job is done."""
    while not done.wait(BEAT_S):
        answers.write(ALIVE.decode())
        answers.flush()


def main() -> None:
    """Serve until standard input closes, with as much less priority as the first argument says."""
    os.nice(int(sys.argv[1]))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # whatever a library prints must not pass for an answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines, sys.stdin), daemon=True).start()
    while True:
        line, done = lines.get(), threading.Event()
        beating = threading.Thread(target=beat, args=(answers, done), daemon=True)
        beating.start()
        answer = json.dumps(perform(line))
        done.set()
        beating.join()
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
