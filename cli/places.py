"""Where a command looks when it is not told: the coordinator's address, the token, the keys."""

import os
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import ConfigurationError, ExperimentError, InputError

HOME = Path(".coterie")
PORT = 8765
RESEARCHER_KEY = HOME / "keys" / "researcher.key"

UrlOption = Annotated[str, typer.Option("--url", envvar="COTERIE_URL", help="The coordinator's address.")]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="COTERIE_TOKEN",
        help="A token of a role; if absent, the one in ./.coterie/server/admin.token.",
    ),
]
AuthorityOption = Annotated[
    Path | None, typer.Option("--ca", help="PEM file of the authority that signed the coordinator's certificate.")
]
RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="An experiment's name, id or the beginning of the id (default: the newest)."),
]

DEFAULT_URL = f"http://127.0.0.1:{PORT}"


def file_to_write(path: Path) -> Path:
    """The path, when a file can be made there: known before the work whose result it is to hold."""
    folder = next(place for place in path.absolute().parents if place.exists())
    if path.is_dir():
        what, hint = f"{path} is a folder.", f"Name a file, as in {path / 'infer.onnx'}."
    elif path.exists() and not path.is_file():
        what, hint = f"{path} is a device, not a file that can be replaced.", "Name a file."
    elif not folder.is_dir():
        what, hint = f"{path} cannot be made: {folder} is not a folder.", "Name another place."
    elif not os.access(folder, os.W_OK | os.X_OK):
        what, hint = (
            f"{path} cannot be made: {folder} is not writable.",
            "Name another place, or change permissions.",
        )
    else:
        return path
    raise InputError(what, hint=hint, code="file_unusable")


def set_aside(folder: Path) -> Path | None:
    """Move the folder of an earlier run out of the way: ``name-1`` and so on. Where it is now; None without one. Raises
    ConfigurationError (``run_in_use``) for a run that goes on.
    """
    from coterie.simulation.checkpoint import FILE
    from coterie.simulation.claim import Claim

    if not (folder / FILE).exists():
        return None
    Claim(folder)  # refused where a run goes on, and given up at once
    number = 1
    while (kept := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return folder.rename(kept)


def folder_name(experiment: str) -> str:
    """An experiment's name as that of a folder: one plain word, whatever the name holds."""
    from coterie.client_sdk.control.submission import slug
    from coterie.protocol.canonical import sha256_hex

    try:
        return slug(experiment)
    except ExperimentError:
        return sha256_hex(experiment.encode())[:12]


def access_token(token: str | None) -> str:
    """The given token, else the administrator's, which a coordinator that was started here has left."""
    if token:
        return token
    path = Path(os.environ.get("COTERIE_FOLDER", HOME / "server")) / "admin.token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise ConfigurationError(
            f"No token: none was given and there is no {path}.",
            hint="Run the command in the folder where `coterie server` was started; or set COTERIE_TOKEN to a token "
            "that an administrator made (coterie tokens make --role researcher).",
            code="token_missing",
        ) from None
