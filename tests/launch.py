"""``launch DOOR MODULE WORDS``: the module as a fork of the process behind `tests.prepared`, on this process's streams.

It ends as the fork ends, and the fork with it.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
    door.connect(sys.argv[1])
    order = {"module": sys.argv[2], "words": sys.argv[3:], "cwd": os.getcwd(), "env": dict(os.environ)}
    socket.send_fds(door, [json.dumps(order).encode()], [0, 1, 2])
    os.closerange(0, 3)
    door.recv(16)
    code = int(door.recv(16) or 1)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
