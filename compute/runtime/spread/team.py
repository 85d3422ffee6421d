"""The processes that share a step with this one: started, kept in step, and ended with it."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from coterie.compute.runtime.executable import failed
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.spread import worker
from coterie.compute.runtime.spread.channel import FAILED, GO, Channel, Gone
from coterie.compute.runtime.spread.memory import SharedMemory
from coterie.compute.runtime.spread.program import Program, Stages
from coterie.errors import CoterieError, InputError

_PATIENCE_S = 5.0


class ProcessLost(CoterieError):
    """A process that shared in a training ended before the training did."""

    code = "process_lost"


@dataclass(frozen=True)
class _Member:
    process: "subprocess.Popen[bytes]"
    channel: Channel


class Team:
    """This process, which runs the first program, and one for each of the others.

    Raises InputError (``not_spreadable``) where a process cannot be given memory, GraphRefused for a graph that does
    not load, ProcessLost when one ends too early. After an error the others are ended.
    """

    def __init__(self, programs: Sequence[Program], memory: SharedMemory) -> None:
        self._turn = 0
        self.closed = False
        self._members: list[_Member] = []
        with self._closed_on_errors():
            for program in programs[1:]:
                self._members.append(_started(memory))
                for message in program.messages():
                    self._members[-1].channel.send(message)
            self._stages = Stages(programs[0], memory)
            for member in self._members:
                self._hear(member)

    def step(self) -> None:
        """One step of all: stage after stage, each begun when all have ended the one before."""
        with self._closed_on_errors():
            for stage in range(len(self._stages)):
                for member in self._members:
                    member.channel.tell(GO)
                self._run(stage)
                for member in self._members:
                    self._hear(member)
        self._turn = 1 - self._turn

    @property
    def turn(self) -> int:
        """Which of the two sets of state the next step reads."""
        return self._turn

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the other processes."""
        return tuple(member.process.pid for member in self._members)

    def close(self) -> None:
        """End the other processes; they hold nothing that is not here."""
        self.closed = True
        for member in self._members:
            member.channel.close()
        for member in self._members:
            try:
                member.process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    @contextmanager
    def _closed_on_errors(self) -> Generator[None]:
        """End the other processes with any error. A process that is gone becomes ProcessLost."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, Gone):
                raise self._lost() from error
            raise

    def _run(self, stage: int) -> None:
        try:
            self._stages.run(stage, self._turn)
        except Exception as error:  # see open_session
            raise failed(CPU, error, "a training step") from error

    def _hear(self, member: _Member) -> None:
        if member.channel.hear() == FAILED:
            said = member.channel.receive().decode("utf-8", "replace")
            raise failed(CPU, RuntimeError(said), "a process that shares the steps")

    def _lost(self) -> ProcessLost:
        codes = [member.process.returncode for member in self._members if member.process.returncode]
        how = f" (exit status {codes[0]})" if codes else ""
        return ProcessLost(
            f"One of the {len(self._members) + 1} processes that share the steps ended{how}.",
            hint="Train in one process, or see whether the machine ran out of memory.",
        )


def _started(memory: SharedMemory) -> _Member:
    here, there = socket.socketpair()
    command = [
        sys.executable,
        "-P",
        "-m",
        worker.__name__,
        str(there.fileno()),
        str(memory.descriptor),
        str(memory.size),
    ]
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            pass_fds=(there.fileno(), memory.descriptor),
            # What a terminal sends to this process is not meant for that one.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        here.close()
        raise InputError(
            f"A process to share the steps with could not be started: {error}", code="not_spreadable"
        ) from error
    finally:
        there.close()
    return _Member(process, Channel(here))
