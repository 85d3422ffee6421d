"""The files that a run leaves in its folder: one line per round for programs, a table for spreadsheets, the curves."""

import json
from pathlib import Path

from coterie import errors
from coterie.aggregation.history import History
from coterie.aggregation.report.panels import panels
from coterie.aggregation.report.svg import svg
from coterie.protocol.canonical import parse_json
from coterie.protocol.files import make_folder, write_durably

ROUNDS, TABLE, CURVES = "rounds.jsonl", "rounds.csv", "rounds.svg"
_LARGEST = 1 << 28


def write_run(folder: Path, name: str, history: History) -> Path:
    """Write ``rounds.jsonl``, ``rounds.csv`` and ``rounds.svg`` into the run's folder; returns the folder.

    The lines are the rounds' events, then one that says how the run ended; `read_run` gives the history back.
    Raises errors.StorageError.
    """
    make_folder(folder)
    ended = {"event": "finished", "name": name, "reason": history.reason, "best": history.best}
    lines = [json.dumps(line, allow_nan=False) for line in (*history.to_dicts(), ended)]
    write_durably(folder / TABLE, history.to_csv().encode())
    write_durably(folder / CURVES, svg(name, panels(history)).encode())
    write_durably(folder / ROUNDS, "".join(f"{line}\n" for line in lines).encode())
    return folder


def read_run(path: Path) -> tuple[str, History]:
    """The name and history of a run, from its folder or from the lines that a command with ``--json`` printed.

    Lines that tell of other things than rounds and the end are passed over.
    Raises errors.InputError (``run_unreadable``) for a file that is absent or holds no round.
    """
    file = path / ROUNDS if path.is_dir() else path
    rounds: list[dict[str, object]] = []
    name, reason, best = path.resolve().stem, None, None
    try:
        if file.stat().st_size > _LARGEST:
            raise _unreadable(file, f"it is larger than {_LARGEST >> 20} MB")
        for line in file.read_text(encoding="utf-8").splitlines():
            value = parse_json(line.encode()) if line.strip() else None
            match value:
                case {"event": "round", **_more}:
                    rounds.append(dict(value))
                case {"event": "finished" | "summary", **more}:
                    name, reason, best = str(more.get("name") or name), more.get("reason"), more.get("best")
                case _:
                    continue
        history = History.from_dicts(rounds, reason=_text(reason), best=_text(best))
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    except (errors.InputError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(file, str(error).rstrip(".")) from error
    if not len(history):
        raise _unreadable(file, "it holds no round")
    return name, history


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _unreadable(file: Path, why: str) -> errors.InputError:
    return errors.InputError(
        f"{file} is no record of a run: {why}.",
        hint=f"Name a run's folder, which holds {ROUNDS}, or a file of the lines that a command with --json printed.",
        code="run_unreadable",
    )
