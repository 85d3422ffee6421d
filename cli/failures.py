"""From an exception to what the user reads and the exit code that a script sees."""

import json
import os
import sys
import traceback
from typing import Final, Protocol, TextIO, runtime_checkable

from coterie.errors import CoterieError, InputError, InternalError, RemoteError, RequestRefused

_COLOURS: Final = ("\033[1;31m", "\033[32m", "\033[0m")

OK = 0
FAILED = 1
USAGE = 2
REMOTE = 3
BAD_INPUT = 4
BUG = 5
CANNOT_TELL = 6
INTERRUPTED = 130

# The first class that fits decides.
EXIT_CODES: tuple[tuple[type[CoterieError], int], ...] = (
    (RequestRefused, REMOTE),
    (RemoteError, REMOTE),
    (InputError, BAD_INPUT),
    (InternalError, BUG),
    (CoterieError, FAILED),
)


@runtime_checkable
class UsageProblem(Protocol):
    """How typer says that a command line is wrong."""

    exit_code: int

    def format_message(self) -> str: ...


def judge(error: object) -> tuple[CoterieError, int]:
    """An exception as one of coterie's errors, and its exit code. One that coterie does not know is a bug."""
    if isinstance(error, InputError) and error.reason == "usage":
        return error, USAGE
    if isinstance(error, CoterieError):
        return error, next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    if isinstance(error, UsageProblem):
        hint = "See `coterie --help`, or --help after the command."
        # What a validator says is a sentence already; the name of its exception is not for people.
        message = error.format_message().replace("Value error, ", "")
        return InputError(message, hint=hint, code="usage"), USAGE
    if isinstance(error, OSError) and error.filename is not None:
        hint = "Check the path, its permissions and the space left."
        return InputError(f"{error.filename}: {error.strerror}.", hint=hint, code="file_unusable"), BAD_INPUT
    hint = "Please report it with the lines above."
    return InternalError(f"{type(error).__name__}: {error}", hint=hint), BUG


def report(error: Exception, *, as_json: bool) -> int:
    """Say what went wrong and return the exit code.

    People read `error[code]: message`, a fix and a documentation address on standard error; with as_json, one more
    line of JSON goes to standard output. The traceback of a bug comes first.
    """
    if isinstance(error, BrokenPipeError):
        # The reader of our output left; nothing more can be said to it, not even by the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    known, exit_code = judge(error)
    if exit_code == BUG:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        line = {
            "event": "error",
            "code": known.reason,
            "message": known.message,
            "hint": known.hint,
            "doc": known.doc,
            "exit": exit_code,
        }
        print(json.dumps(line), flush=True)
    red, green, plain = _COLOURS if _has_colour(sys.stderr) else ("", "", "")
    print(f"{red}error[{known.reason}]:{plain} {known.message}", file=sys.stderr)
    if known.hint:
        print(f"  {green}fix:{plain}  {known.hint}", file=sys.stderr)
    print(f"  more: {known.doc}", file=sys.stderr)
    return exit_code


def _has_colour(stream: TextIO) -> bool:
    """Whether a stream shows colours: a terminal does, unless NO_COLOR is set (no-color.org) or it is a dumb one."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
