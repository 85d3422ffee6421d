"""The coordinator's side of the worker process: start it early, hand it one job at a time, try again when it dies."""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import structlog

from coterie.errors import CoterieError
from coterie.server.worker.process import ALIVE

PROGRAM: tuple[str, ...] = (sys.executable, "-m", "coterie.server.worker.process")
"""What starts a worker process."""
LINE_LIMIT = 64 * 1024 * 1024
log = structlog.get_logger("coterie.server.workers")


class JobFailed(CoterieError):
    """A numeric job failed. Its detail ``refused`` is the code of the job's own error, None where it had none."""

    code = "job_failed"


class WorkerLost(JobFailed):
    """The worker process died or hung in every attempt at a job: that says nothing of the job's data."""

    code = "worker_lost"


class Workers:
    """One spawned worker process. Jobs queue; a crash costs the job one of its attempts, not the coordinator."""

    def __init__(self, *, attempts: int, timeout_s: float, silence_s: float = 60.0, niceness: int = 0) -> None:
        """Processes that work for the coordinator.

        silence_s: after how much silence a worker, which says every second that it lives, is taken for stopped.
        niceness: how far the process stands back behind others, 0 to 19 (see nice).
        """
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._niceness = niceness
        self._silence_s = silence_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the process and let it import what it needs, so that the first job does not wait."""
        try:
            async with self._turn:
                await self._attempt("warm", {})
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.warning("worker lost", job="warm", why=type(error).__name__)
            await self._discard()

    async def run(self, job: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a job. Raises JobFailed: at once when the job itself refuses, else after the last attempt; and
        WorkerLost where that found no living worker.
        """
        failure, refused, lost = "it was never tried", None, False
        for attempt in range(1, self._attempts + 1):
            try:
                async with self._turn:
                    answer = await self._attempt(job, arguments)
            except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
                failure, lost = f"the worker died or hung ({type(error).__name__})", True
                log.warning("worker lost", job=job, attempt=attempt, why=failure)
                await self._discard()
                continue
            if "result" in answer:
                return answer["result"]
            failure, lost = f"{answer['error']['code']}: {answer['error']['message']}", False
            log.warning("job failed", job=job, attempt=attempt, why=failure)
            if answer["error"]["final"]:
                refused = answer["error"]["code"]
                break
        if lost:
            raise WorkerLost(
                f"The job {job} failed: {failure}.",
                hint="Is the machine out of memory? The updates are kept, and the job is tried again.",
            )
        raise JobFailed(f"The job {job} failed: {failure}.", refused=refused)

    async def _attempt(self, job: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        process = await self._running()
        async with asyncio.timeout(self._timeout_s):
            await self._send(process, job, arguments)
            return await self._answer(process)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *PROGRAM, str(self._niceness),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_LIMIT, start_new_session=True,
            )  # fmt: skip
        return self._process

    async def _send(self, process: asyncio.subprocess.Process, job: str, arguments: Mapping[str, Any]) -> None:
        if process.stdin is None:
            raise OSError("the worker has no standard input")
        process.stdin.write(json.dumps({"job": job, "arguments": dict(arguments)}).encode() + b"\n")
        await process.stdin.drain()

    async def _answer(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        if process.stdout is None:
            raise OSError("the worker has no standard output")
        while True:
            async with asyncio.timeout(self._silence_s):
                line = await process.stdout.readuntil(b"\n")
            if line != ALIVE:
                return json.loads(line)

    async def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
        if process is not None:
            await process.wait()

    async def close(self) -> None:
        """End the process."""
        await self._discard()
