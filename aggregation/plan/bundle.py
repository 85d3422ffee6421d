"""A plan as one value: manifest, graph files and the researcher's signature; and as a folder on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coterie import errors
from coterie.aggregation.plan.manifest import MANIFEST_BYTES, Manifest
from coterie.aggregation.plan.reading import Text, read, refused
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.conversion import to_json
from coterie.protocol.files import make_folder, write_durably
from coterie.protocol.signing import SigningKey, sign_plan

MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "signature.json"


@dataclass(frozen=True)
class SignatureFile:
    """What stands in ``signature.json``: base64, and a public key in hex."""

    signature: Text
    signer: Text


@dataclass(frozen=True)
class Plan:
    """A bundle. Only `check_plan` says whether it may be trusted; this value alone promises nothing.

    graphs: file name (a stage's, or ``<stage>.<class>`` of a variant) → ONNX bytes. signature (base64) and signer
        (public key, hex) are None until `sign`.
    """

    manifest: Manifest
    graphs: Mapping[str, bytes]
    signature: str | None = None
    signer: str | None = None

    @property
    def id(self) -> str:
        """SHA-256 (hex) of the canonical manifest."""
        return self.manifest.id

    def sign(self, key: SigningKey) -> "Plan":
        """The same plan with this key's signature over its id."""
        return replace(self, signature=sign_plan(key, self.id), signer=key.public)

    def save(self, folder: Path) -> None:
        """Write ``manifest.json``, ``<file>.onnx`` and, when signed, ``signature.json`` into the folder, made if
        absent.

        The manifest comes last, so a folder that has one is whole. Raises errors.StorageError.
        """
        make_folder(folder)
        for name, data in self.graphs.items():
            write_durably(folder / f"{name}.onnx", data)
        if self.signature is not None and self.signer is not None:
            signed = SignatureFile(self.signature, self.signer)
            write_durably(folder / SIGNATURE_FILE, canonical_json(to_json(signed)))
        write_durably(folder / MANIFEST_FILE, self.manifest.data)


@dataclass(frozen=True)
class Bundle:
    """The files of a plan as they were found: nothing is checked yet. Give its parts to `check_plan`."""

    manifest: bytes
    graphs: Mapping[str, bytes]
    signature: str | None
    signer: str | None


def load(folder: Path) -> Bundle:
    """The files of a saved plan, unchecked.

    Raises errors.PlanRefused: ``plan_incomplete`` naming a file that is absent, or too large to be one of a plan's;
    ``plan_manifest`` for a manifest or signature file that cannot be read as one.
    """
    signature, signer = None, None
    if (folder / SIGNATURE_FILE).exists():
        try:
            value = parse_json(_read(folder / SIGNATURE_FILE, 4096))
        except errors.InputError as error:
            raise refused(f"{folder / SIGNATURE_FILE} is unreadable: {error.message}") from error
        signed = read(SignatureFile, value)
        signature, signer = signed.signature, signed.signer
    data = _read(folder / MANIFEST_FILE, MANIFEST_BYTES)
    graphs = {file.name: _read(folder / f"{file.name}.onnx", file.size) for file in Manifest.from_bytes(data).files}
    return Bundle(data, graphs, signature, signer)


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise errors.PlanRefused(
            f"The plan's file {path} cannot be read: {error.strerror}.", code="plan_incomplete"
        ) from error
    if len(data) > limit:
        raise errors.PlanRefused(f"The plan's file {path} has more than {limit} bytes.", code="plan_incomplete")
    return data
