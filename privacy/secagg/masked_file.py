"""A masked vector as a file: safetensors with one U8 tensor, ``masked``, and a header in its metadata.

``__metadata__ = {"coterie": <canonical JSON of the header>}``, as an update's. The header names attempt, task, plan,
model version trained from and the digest of the vector's segments; nothing in it is about the client or its data.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from coterie import errors
from coterie.privacy.secagg.ring import RingVector, VectorSpec, unpack
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.tensors import TensorFile, TensorLimits, encode_tensors, open_tensors
from coterie.protocol.update import METADATA_KEY

FORMAT = "coterie-masked/1"
TENSOR = "masked"
_HEADER_BYTES = 1 << 14


@dataclass(frozen=True)
class MaskedHeader:
    """What a masked vector's file says of it.

    attempt, task: ids.
    plan, base, spec: SHA-256 of the plan, of the model version trained from, and of the vector's segments
        (`VectorSpec.digest`).
    """

    attempt: str
    task: str
    plan: str
    base: str
    spec: str


def encode_masked(header: MaskedHeader, packed: bytes) -> bytes:
    """The file's bytes.

    packed: from `ring.pack`.
    """
    text = canonical_json({"format": FORMAT, **asdict(header)}).decode("utf-8")
    return encode_tensors({TENSOR: np.frombuffer(packed, np.uint8)}, {METADATA_KEY: text})


def read_masked(source: bytes | Path, expected: MaskedHeader, spec: VectorSpec) -> RingVector:
    """The masked vector of a file that must carry exactly the header `expected`.

    Sizes are checked before anything of that size is allocated. Raises errors.UpdateRefused: ``wrong_format``,
    ``truncated``, ``too_large``, ``wrong_task``, ``wrong_plan``, ``wrong_base``, ``wrong_attempt``, ``wrong_vector``
    (another specification), ``malformed``.
    """
    file = check_masked(source, expected, spec)
    return unpack(file.read_bytes(TENSOR, 0, spec.packed_bytes), spec)


def check_masked(source: bytes | Path, expected: MaskedHeader, spec: VectorSpec) -> TensorFile:
    """`read_masked` without its vector: the file, whose header and sizes are as they must be."""
    limits = TensorLimits(
        max_bytes=spec.packed_bytes + 2 * _HEADER_BYTES,
        max_header_bytes=_HEADER_BYTES,
        max_tensors=1,
        dtypes=frozenset({"U8"}),
    )
    try:
        file = open_tensors(source, limits)
    except errors.TensorFileError as error:
        code = error.reason if error.reason in {"too_large", "truncated"} else "wrong_format"
        raise _refused(code, f"The masked vector is not a valid tensor file: {error.message.rstrip('.')}") from None
    _check_header(file, expected)
    if set(file.tensors) != {TENSOR} or len(file.tensors[TENSOR].shape) != 1:
        raise _refused("wrong_format", f"A masked vector's file holds one flat tensor, {TENSOR!r}")
    size = file.tensors[TENSOR].size
    if size != spec.packed_bytes:
        code = "truncated" if size < spec.packed_bytes else "too_large"
        raise _refused(code, f"The masked vector has {size} bytes; its specification says {spec.packed_bytes}")
    return file


def _check_header(file: TensorFile, expected: MaskedHeader) -> None:
    try:
        found = parse_json(file.metadata.get(METADATA_KEY, "").encode("utf-8", "surrogatepass"))
    except errors.InputError as error:
        raise _refused(
            "wrong_format", f"The masked vector's header is unreadable: {error.message.rstrip('.')}"
        ) from None
    wanted = {"format": FORMAT, **asdict(expected)}
    if not isinstance(found, dict) or set(found) != set(wanted) or found["format"] != FORMAT:
        raise _refused("wrong_format", f"The file's header is not that of a masked vector, {FORMAT}")
    for name, code in _CODES.items():
        if found[name] != wanted[name]:
            raise _refused(code, f"The masked vector names {name} {str(found[name])[:80]!r}; expected {wanted[name]!r}")


_CODES: Mapping[str, str] = {
    "attempt": "wrong_attempt",
    "task": "wrong_task",
    "plan": "wrong_plan",
    "base": "wrong_base",
    "spec": "wrong_vector",
}


def _refused(code: str, message: str) -> errors.UpdateRefused:
    return errors.UpdateRefused(f"{message}.", code=code)
