"""A party's consent to what leaves it."""

import sys

import typer

from coterie.errors import InputError


def confirm(*, yes: bool) -> None:
    """Ask on the terminal whether to go on, unless that was agreed to beforehand.

    Raises InputError (``unconfirmed``) for a no, and where there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "Nobody has agreed to what would leave, and there is no terminal to ask on.",
            hint="Read it above, and give --yes.",
            code="unconfirmed",
        )
    if not typer.confirm("Go on", err=True):
        raise InputError("Nothing has left.", hint="Run the command again to go on.", code="unconfirmed")
