"""What the first word of `coterie export` means: a file, a simulation, or a version of a coordinator's experiment."""

from pathlib import Path

from coterie.cli.places import HOME, access_token, folder_name
from coterie.errors import ConfigurationError, InputError

_FILE = "infer.onnx"
_HINT = "Name an ONNX file, a simulation, or an experiment on the coordinator."


def model_of(word: str, version: str, url: str, token: str | None, ca: Path | None) -> Path | bytes:
    """The file of a path, the infer.onnx of a folder or of a simulation, or the bytes of a coordinator's version.

    Raises InputError (code ``file_unusable``) for a path that is no file and for a folder without a model, and for a
    word that is neither here nor, for want of a token, to be asked of a coordinator; code ``usage`` for a version of
    what is here.
    """
    path, simulations = Path(word), HOME / "simulations"
    places = (path, path / _FILE, simulations / folder_name(word) / _FILE)
    if here := next((place for place in places if place.is_file()), None):
        _require_only_version(here, version)
        return here
    if path.is_dir():
        raise InputError(f"The folder {word} has no {_FILE}.", hint=_HINT, code="file_unusable")
    if path.suffix == ".onnx" or len(path.parts) > 1:
        raise InputError(f"There is no file {word}.", hint=_HINT, code="file_unusable")
    try:
        found = access_token(token)
    except ConfigurationError as error:
        known = ", ".join(sorted(each.parent.name for each in simulations.glob(f"*/{_FILE}")))
        raise InputError(
            f"There is no file and no simulation {word}; simulations here: {known or 'none'}.",
            hint=f"{_HINT} For the last a token is needed: --token, or COTERIE_TOKEN.",
            code="file_unusable",
        ) from error
    return _downloaded(word, version, url, found, ca)


def _require_only_version(here: Path, version: str) -> None:
    if version != "best":
        raise InputError(
            f"{here} is one model, and --version {version} asks for one of several.",
            hint="Versions are a coordinator's: name its experiment by the id that `coterie list` shows.",
            code="usage",
        )


def _downloaded(run: str, version: str, url: str, token: str, ca: Path | None) -> bytes:
    from tempfile import TemporaryDirectory

    from coterie.cli.watch import find_run
    from coterie.client_sdk.control.control import Control

    with TemporaryDirectory() as folder, Control(url, token=token, ca=ca) as control:
        return find_run(control, run).download(Path(folder) / _FILE, version=version).read_bytes()
