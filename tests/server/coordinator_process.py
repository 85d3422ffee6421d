"""A coordinator as a process of its own: ``python coordinator_process.py SETTINGS READY DISORDER HELD``.

The file READY appears when it answers, with its address. What it does against the order of locks goes to DISORDER. Its
clock stands still while there is a file HELD.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from coterie.server.serve import Started, serve
from coterie.server.settings import Settings
from tests.held_clock import held_by
from tests.lock_order import told_to


def main(settings: str, ready: str, disorder: str, held: str) -> None:
    """Serve until told to stop."""

    def on_ready(started: Started) -> None:
        part = Path(f"{ready}.part")
        part.write_text(started.url)
        part.rename(ready)

    with told_to(Path(disorder)), held_by(Path(held)):
        serve(Settings.model_validate_json(settings), on_ready)


if __name__ == "__main__":
    main(*sys.argv[1:])
