"""A coordinator as a program: ``served FOLDER SETTINGS``, whose settings are JSON.

It tells its URL and its administrator's token as one line of JSON; what it does against the order of locks goes to the
file ``disorder`` beside its folder.
"""

import json
import sys
from pathlib import Path

from coterie.server.serve import Started, serve
from coterie.server.settings import Settings
from tests.lock_order import told_to

WAITS = {"port": 0, "retry_floor_s": 0.02, "retry_idle_s": 0.02, "log_level": "error"}


def ready(started: Started) -> None:
    """Tell whoever started it."""
    token = started.admin_token_file.read_text().strip()
    print(json.dumps({"url": started.url, "token": token}), flush=True)


def main() -> None:
    """Serve until a signal ends it."""
    folder, settings = Path(sys.argv[1]), {**WAITS, **json.loads(sys.argv[2])}
    with told_to(folder.parent / "disorder"):
        serve(Settings.model_validate({"folder": folder, **settings}), ready)


if __name__ == "__main__":
    main()
