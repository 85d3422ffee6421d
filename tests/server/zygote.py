"""Starts real coordinators fast: imports everything once, then forks one process per request.

One JSON object per line: {"settings": {...}, "fault": "…", "ready": "file"} starts a coordinator and is answered with
its pid; {"wait": pid} is answered with its exit status when it has ended. Every coordinator is a process of its own
that serves over a real socket. What they do against the order of locks goes to the file that the first argument names.
"""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from coterie.server.serve import Started, serve
from coterie.server.settings import Settings
from tests.lock_order import told_to


def child(order: dict[str, object]) -> None:
    """Serve as the order says; the ready file appears when the coordinator answers."""
    os.environ["COTERIE_FAULT"] = str(order["fault"])
    ready = Path(str(order["ready"]))

    def on_ready(started: Started) -> None:
        part = ready.with_suffix(".part")
        part.write_text(started.url)
        part.rename(ready)

    code = 1
    try:
        with told_to(Path(sys.argv[1])):
            serve(Settings.model_validate(order["settings"]), on_ready)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve orders until standard input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            child(order)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
