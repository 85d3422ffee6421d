"""The bundle as a file: a zip archive of stored members, each named with its SHA-256 in a manifest.

``manifest.json``: format, thresholds and digests. ``model.onnx``. ``table.json``: the quantisation table.
``checks.npz``: ``input/<name>`` and ``output/<name>``. ``converted/<name>``: forms for chips. Any tool for archives
opens it; no member is ever written to disk by its name here.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np

from coterie.compute.bundle.bundle import Bundle
from coterie.compute.bundle.quantisation import QuantisedTensor
from coterie.compute.export.comparison import Thresholds
from coterie.compute.ir import NDArray
from coterie.errors import InputError, StorageError

FORMAT = "coterie-bundle-1"
_MANIFEST, _MODEL, _TABLE, _CHECKS, _CONVERTED = "manifest.json", "model.onnx", "table.json", "checks.npz", "converted/"
_MOST_MEMBERS = 64
_MOST_BYTES = 1 << 32
_SMALL_BYTES = 1 << 26
# What zipfile, json and NumPy raise of bytes that somebody else wrote.
_NO_ARCHIVE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError)
_UNREADABLE = (*_NO_ARCHIVE, KeyError, TypeError, AttributeError, OSError, MemoryError, InputError)
# The earliest that a zip archive can say, so that the same bundle is the same file.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def write_bundle(path: str | Path, bundle: Bundle) -> Path:
    """Write a bundle, whole or not at all, and return its path. Equal bundles give equal bytes.

    Raises InputError (code ``bundle_too_large``) for one that `read_bundle` would refuse to read, StorageError where
    the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.part")
    members = _members(bundle)
    if excess := _excess({name: len(data) for name, data in members.items()}):
        raise InputError(
            f"The bundle for {target} would be one that nobody reads: {excess}.",
            hint="Keep fewer converted forms in a bundle, or check the model on a smaller batch.",
            code="bundle_too_large",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w") as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, _NO_TIME), data)
        partial.replace(target)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(f"The bundle cannot be written to {target}: {error.strerror}.") from error
    return target


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle. That its parts are those that were written is checked; whether the model gives the right answers,
    ``verify`` says.

    Raises InputError (code ``bundle_damaged``) for a file that is no bundle, too large, or changed; StorageError for
    one that cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked(archive)
    except OSError as error:
        raise StorageError(f"The bundle {path} cannot be read: {error.strerror}.") from error
    except _NO_ARCHIVE as error:
        raise damaged(f"{path} is no zip archive that can be read: {error}") from error
    try:
        manifest = cast(dict[str, Any], json.loads(members[_MANIFEST]))
        rows = cast(list[object], json.loads(members[_TABLE]))
        checks = _arrays(members[_CHECKS])
        limits = cast(dict[str, Any], manifest["thresholds"])
        largest = limits["largest"]
        return Bundle(
            model=members[_MODEL],
            table=tuple(QuantisedTensor.from_json(row) for row in rows),
            inputs=_under(checks, "input/"),
            outputs=_under(checks, "output/"),
            thresholds=Thresholds(
                cosine=float(limits["cosine"]),
                euclidean=float(limits["euclidean"]),
                largest=float("inf") if largest is None else float(largest),
            ),
            converted={
                name.removeprefix(_CONVERTED): data for name, data in members.items() if name.startswith(_CONVERTED)
            },
        )
    except _UNREADABLE as error:
        raise damaged(f"{path} is not a bundle of the form {FORMAT}: {error!r}") from error


def damaged(message: str) -> InputError:
    """The refusal of a file."""
    return InputError(f"{message}.", hint="Make the bundle again, or fetch it again.", code="bundle_damaged")


def _members(bundle: Bundle) -> dict[str, bytes]:
    limits = bundle.thresholds
    checks = io.BytesIO()
    arrays = {f"input/{name}": value for name, value in bundle.inputs.items()}
    arrays |= {f"output/{name}": value for name, value in bundle.outputs.items()}
    with zipfile.ZipFile(checks, "w") as archive:
        for name, value in arrays.items():
            held = io.BytesIO()
            np.save(held, np.ascontiguousarray(value), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _NO_TIME), held.getvalue())
    parts = {
        _MODEL: bundle.model,
        _TABLE: _json([row.to_json() for row in bundle.table]),
        _CHECKS: checks.getvalue(),
        **{f"{_CONVERTED}{name}": data for name, data in sorted(bundle.converted.items())},
    }
    manifest = {
        "format": FORMAT,
        "thresholds": {
            "cosine": limits.cosine,
            "euclidean": limits.euclidean,
            # JSON has no infinity.
            "largest": None if limits.largest == float("inf") else limits.largest,
        },
        "sha256": {name: sha256(data).hexdigest() for name, data in parts.items()},
    }
    return {_MANIFEST: _json(manifest), **parts}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _checked(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """All members, each of the size and digest that it is said to have."""
    listed = archive.infolist()
    sizes = {member.filename: member.file_size for member in listed}
    if len(sizes) != len(listed) or _MANIFEST not in sizes:
        raise damaged(f"The archive has two members of one name, or no {_MANIFEST}")
    if excess := _excess(sizes):
        raise damaged(f"The archive cannot be a bundle: {excess}")
    _require_stored(listed)
    members = {member.filename: archive.read(member) for member in listed}
    manifest: object = json.loads(members[_MANIFEST])
    said = cast(dict[str, Any], manifest) if isinstance(manifest, dict) else {}
    if said.get("format") != FORMAT:
        raise damaged(f"The archive is of the form {str(said.get('format'))[:64]!r}, not {FORMAT!r}")
    digests = {name: sha256(data).hexdigest() for name, data in members.items() if name != _MANIFEST}
    if digests != said.get("sha256"):
        stated = cast(dict[str, Any], said["sha256"]) if isinstance(said.get("sha256"), dict) else {}
        wrong = sorted(name for name in {*digests, *stated} if digests.get(name) != stated.get(name))
        raise damaged(f"{', '.join(wrong[:5])} in the archive is not what its manifest names")
    return members


def _excess(sizes: Mapping[str, int]) -> str | None:
    """What of these members, bytes by name, goes beyond the limits of a bundle; None for nothing."""
    if len(sizes) > _MOST_MEMBERS:
        return f"it has {len(sizes)} members, and at most {_MOST_MEMBERS} are read"
    if sum(sizes.values()) > _MOST_BYTES:
        return f"it has {sum(sizes.values())} bytes, and at most {_MOST_BYTES} are read"
    small = [name for name in (_MANIFEST, _TABLE) if sizes.get(name, 0) > _SMALL_BYTES]
    return f"{small[0]} has {sizes[small[0]]} bytes, and at most {_SMALL_BYTES} are read" if small else None


def _require_stored(members: list[zipfile.ZipInfo]) -> None:
    # What is compressed could unpack to anything.
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise damaged("A member of the archive is compressed; those of a bundle are stored as they are")


def _arrays(data: bytes) -> dict[str, NDArray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        _require_stored(archive.infolist())
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def _under(arrays: dict[str, NDArray], prefix: str) -> dict[str, NDArray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
