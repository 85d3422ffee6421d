"""The files that a run leaves in its folder: one line per round for programs, a table for spreadsheets, the curves."""

import json
from collections.abc import Iterator
from pathlib import Path

from coterie import errors
from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
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

    Lines that tell of other things than rounds and the end are passed over, and so is a last line that was not written
    to its end, as of a command that is still at work. Of lines of several runs, one after another, the last run counts:
    a round whose number does not rise begins another.
    Raises errors.InputError (``run_unreadable``) for a file that is absent or holds no round, naming the line that is
    wrong.
    """
    file = path / ROUNDS if path.is_dir() else path
    rounds: list[RoundRecord] = []
    unnamed = path.resolve().stem
    name, reason, best = unnamed, None, None
    for number, line, ended in _lines(file):
        try:
            value = parse_json(line.encode())
        except errors.InputError as error:
            if not ended:
                continue
            raise _unreadable(file, f"its line {number} is not valid JSON: {error.message.rstrip('.')}") from error
        try:
            match value:
                case {"event": "round", **_more}:
                    record = RoundRecord.from_dict(dict(value))
                    if rounds and record.round <= rounds[-1].round:
                        rounds, name, reason, best = [], unnamed, None, None
                    rounds.append(record)
                case {"event": "finished" | "summary", **more}:
                    name, reason, best = str(more.get("name") or unnamed), more.get("reason"), more.get("best")
                case _:
                    continue
        except KeyError as error:
            raise _unreadable(file, f"its line {number} lacks the field {error}") from error
        except (TypeError, ValueError, AttributeError, errors.InputError) as error:
            raise _unreadable(file, f"its line {number} cannot be read: {str(error).rstrip('.')}") from error
    if not rounds:
        raise _unreadable(file, "it holds no round")
    return name, History(tuple(rounds), _text(reason), _text(best))


def _lines(file: Path) -> Iterator[tuple[int, str, bool]]:
    """(number, line, whether a newline ends it) of lines that are not empty."""
    try:
        if file.stat().st_size > _LARGEST:
            raise _unreadable(file, f"it is larger than {_LARGEST >> 20} MB")
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(file, f"it is not UTF-8 text: {error}") from error
    return ((number, line, number < len(lines)) for number, line in enumerate(lines, 1) if line.strip())


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _unreadable(file: Path, why: str) -> errors.InputError:
    return errors.InputError(
        f"{file} is not a record of a run: {why}.",
        hint=f"Name a run's folder, which holds {ROUNDS}, or a file of the lines that a command with --json printed.",
        code="run_unreadable",
    )
