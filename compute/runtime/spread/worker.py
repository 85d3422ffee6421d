"""``python -m coterie.compute.runtime.spread.worker``: a process that runs its part of each step until nobody asks."""

import os
import signal
import socket
import sys
import threading
import time

from coterie.compute.runtime.session import first_line
from coterie.compute.runtime.spread.channel import FAILED, GO, MET, READY, Channel, Gone
from coterie.compute.runtime.spread.memory import SharedMemory
from coterie.compute.runtime.spread.program import Program, Stages

# How often it looks whether it still has the parent that started it. The line tells it at once, unless another process
# holds a copy of the other end.
_LOOK_S = 2.0


def main(line: int, memory: int, size: int) -> None:
    """Work for the process at the other end of the line.

    line, memory: descriptors. size: of the memory.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # what a terminal sends is meant for the parent
    threading.Thread(target=_leave_without, args=(os.getppid(),), daemon=True).start()
    channel = Channel(socket.socket(fileno=line))
    try:
        _work(channel, SharedMemory(memory, size))
    except Gone:
        pass
    except Exception as error:  # whatever it is, the parent is to hear of it, and nobody else is there to
        _complain(channel, error)
    os._exit(0)


def _work(channel: Channel, memory: SharedMemory) -> None:
    stages = Stages(Program.read(channel.receive), memory)
    channel.tell(READY)
    turn = 0
    while True:
        for stage in range(len(stages)):
            if channel.hear() != GO:
                return
            stages.run(stage, turn)
            channel.tell(MET)
        turn = 1 - turn


def _complain(channel: Channel, error: Exception) -> None:
    try:
        channel.tell(FAILED)
        channel.send(first_line(error).encode())
    except Gone:
        pass


def _leave_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
