"""Tensor files: safetensors, read with limits and without trust.

Format (https://github.com/huggingface/safetensors#format): eight bytes of little-endian header length, a JSON header
``{"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [start, stop]}}``, then the data without gap
or overlap.

Writing is deterministic: metadata first with its keys sorted, then tensors by the order of `DTYPES` and name, compact
JSON, spaces up to a multiple of eight. With at most one metadata key the bytes are those that the safetensors library
writes (a test compares them).

Reading checks the whole header against `TensorLimits` and against the true size of the file before anything of the
size it declares is allocated.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.canonical import LARGEST_INTEGER, parse_json
from coterie.protocol.files import Chunk, storage_error, write_durably

DTYPES: Mapping[str, np.dtype[Any]] = {
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
"""The dtypes by their names in the format, in the order in which a file holds its tensors."""

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_RANKS = {code: rank for rank, code in enumerate(DTYPES)}
_METADATA = "__metadata__"
_PREFIX = 8


@dataclass(frozen=True, kw_only=True)
class TensorLimits:
    """What a tensor file may be. Sizes in bytes; dtypes by their safetensors names."""

    max_bytes: int = 1 << 34
    max_header_bytes: int = 1 << 20
    max_tensors: int = 10_000
    max_rank: int = 8
    max_name: int = 256
    dtypes: frozenset[str] = frozenset(DTYPES)


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: byte offsets `start`, `stop` from the beginning of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class ByteSource(Protocol):
    """Bytes that lie elsewhere and are read by ranges."""

    @property
    def size(self) -> int:
        """How many bytes there are."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill the buffer with the bytes from ``start`` on. Returns how many there were, fewer only at the end."""
        ...


@dataclass(frozen=True)
class TensorFile:
    """A checked tensor file, in memory, on disk or elsewhere.

    A plain value: no handle stays open between reads, so it needs no closing.
    """

    source: bytes | Path | ByteSource
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Elements [start, stop) of a tensor as a new flat array.

        Raises errors.TensorFileError if the file changed meanwhile.
        """
        info = self.tensors[name]
        last = info.size if stop is None else stop
        if not 0 <= start <= last <= info.size:
            raise IndexError(f"elements [{start}, {last}) of tensor {name!r} with {info.size}")
        width = info.dtype.itemsize
        return _read_array(self.source, info.start + start * width, last - start, info.dtype)

    def read_bytes(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a U8 tensor."""
        return self.read(name, start, stop).data

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """A whole tensor in its shape."""
        return self.read(name).reshape(self.tensors[name].shape)


def open_tensors(source: bytes | Path | ByteSource, limits: TensorLimits | None = None) -> TensorFile:
    """Check a tensor file's header and return it for lazy reading.

    Raises errors.TensorFileError, whose `reason` names the cause, for anything malformed or over `limits`;
    errors.StorageError when the file cannot be read.
    """
    bounds = limits or TensorLimits()
    total = _size(source)
    if total > bounds.max_bytes:
        raise _refused("too_large", f"The file has {total} bytes; at most {bounds.max_bytes} are allowed")
    if total < _PREFIX:
        raise _refused("truncated", f"The file has {total} bytes, fewer than the {_PREFIX} of the length prefix")
    (length,) = struct.unpack("<Q", _read_bytes(source, 0, _PREFIX))
    if length > bounds.max_header_bytes:
        raise _refused(
            "header_too_large", f"The header declares {length} bytes; at most {bounds.max_header_bytes} are allowed"
        )
    if length > total - _PREFIX:
        raise _refused("truncated", f"The header declares {length} bytes, but only {total - _PREFIX} follow")
    try:
        header = parse_json(_read_bytes(source, _PREFIX, _PREFIX + length), limit=bounds.max_header_bytes)
    except errors.InputError as error:
        raise _refused("header_invalid", error.message.rstrip(".")) from None
    if not isinstance(header, dict):
        raise _refused("header_invalid", "The header is not a JSON object")
    metadata = _metadata(header.pop(_METADATA, None))
    if len(header) > bounds.max_tensors:
        raise _refused(
            "too_many_tensors", f"The file has {len(header)} tensors; at most {bounds.max_tensors} are allowed"
        )
    tensors = {name: _info(name, entry, _PREFIX + length, bounds) for name, entry in header.items()}
    _check_cover(tensors, _PREFIX + length, total)
    return TensorFile(source, tensors, metadata)


def encode_tensors(tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """The file's bytes.

    Raises errors.TensorFileError (``dtype_unsupported``) for a dtype that the format table lacks.
    """
    return b"".join(tensor_chunks(tensors, metadata))


def decode_tensors(data: bytes, limits: TensorLimits | None = None) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a file in memory, as new arrays. Raises errors.TensorFileError."""
    file = open_tensors(data, limits)
    return {name: file.tensor(name) for name in file.tensors}


def write_file(path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write a tensor file durably (see files.write_durably), without a second copy of the data in memory."""
    write_durably(path, tensor_chunks(tensors, metadata))


def read_file(source: Path | ByteSource, limits: TensorLimits | None = None) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a file on disk or elsewhere. Raises errors.TensorFileError or errors.StorageError."""
    file = open_tensors(source, limits)
    return {name: file.tensor(name) for name in file.tensors}


def tensor_chunks(
    tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> Iterator[Chunk]:
    """The file's bytes piece by piece; a contiguous tensor's piece is a view of it, so nothing is copied.

    Raises errors.TensorFileError as `encode_tensors` does.
    """
    codes = {name: _code(name, array) for name, array in tensors.items()}
    ordered = sorted(tensors, key=lambda name: (_RANKS[codes[name]], name))
    header: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in ordered:
        start, end = end, end + tensors[name].nbytes
        header[name] = {"dtype": codes[name], "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text))
    yield text
    for name in ordered:
        array = np.ascontiguousarray(tensors[name], DTYPES[codes[name]])
        if array.size:
            yield array.reshape(-1).data.cast("B")


def _code(name: str, array: npt.NDArray[Any]) -> str:
    code = _CODES.get(array.dtype.newbyteorder("<"))
    if code is None or name == _METADATA:
        raise _refused(
            "dtype_unsupported", f"Tensor {name!r} of dtype {array.dtype} cannot be written; use one of {_names()}"
        )
    return code


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in cast(dict[str, object], value).values()):
        raise _refused("header_invalid", f"{_METADATA} must map text to text")
    return cast(dict[str, str], value)


def _info(name: str, entry: object, base: int, limits: TensorLimits) -> TensorInfo:
    shown = name[:64]
    if not name or len(name) > limits.max_name:
        raise _refused("header_invalid", f"A tensor's name has 1 to {limits.max_name} characters; got {len(name)}")
    fields = cast(dict[str, object], entry) if isinstance(entry, dict) else {}
    if set(fields) != {"dtype", "shape", "data_offsets"}:
        raise _refused("header_invalid", f"Tensor {shown!r} must have exactly dtype, shape and data_offsets")
    code = fields["dtype"]
    if not isinstance(code, str) or code not in DTYPES or code not in limits.dtypes:
        raise _refused(
            "dtype_unsupported", f"Tensor {shown!r} has dtype {str(code)[:32]!r}; allowed: {_names(limits.dtypes)}"
        )
    shape = _integers(fields["shape"])
    if shape is None or len(shape) > limits.max_rank:
        raise _refused(
            "header_invalid", f"Tensor {shown!r} must have a shape of at most {limits.max_rank} whole numbers ≥ 0"
        )
    offsets = _integers(fields["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _refused(
            "offsets_invalid", f"Tensor {shown!r} must have data_offsets [start, stop] with 0 ≤ start ≤ stop"
        )
    # An empty tensor may state any sizes beside its 0, but of some no array can be made.
    if 0 in shape and math.prod(n for n in shape if n) > LARGEST_INTEGER // 8:
        raise _refused("header_invalid", f"Tensor {shown!r} has a shape that is too large for an array")
    size = math.prod(shape) * DTYPES[code].itemsize
    if offsets[1] - offsets[0] != size:
        raise _refused(
            "offsets_invalid",
            f"Tensor {shown!r} needs {size} bytes by its dtype and shape; its offsets span {offsets[1] - offsets[0]}",
        )
    return TensorInfo(DTYPES[code], shape, base + offsets[0], base + offsets[1])


def _integers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    items = cast(list[object], value)
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= LARGEST_INTEGER for n in items):
        return None
    return tuple(cast(list[int], items))


def _check_cover(tensors: Mapping[str, TensorInfo], base: int, total: int) -> None:
    """Tensors must cover the data exactly: no gap, no overlap, nothing missing, nothing left over."""
    end = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != end:
            cause = "offsets_overlap" if info.start < end else "offsets_gap"
            raise _refused(
                cause, f"Tensor {name[:64]!r} starts at data byte {info.start - base}; expected {end - base}"
            )
        end = info.stop
    if end > total:
        raise _refused("truncated", f"The tensors need {end} bytes, but the file has {total}")
    if end < total:
        raise _refused("trailing_bytes", f"The tensors end at byte {end}, but the file has {total}")


def _size(source: bytes | Path | ByteSource) -> int:
    if isinstance(source, bytes):
        return len(source)
    if not isinstance(source, Path):
        return source.size
    try:
        return source.stat().st_size
    except OSError as error:
        raise storage_error(source, error) from error


def _read_bytes(source: bytes | Path | ByteSource, start: int, stop: int) -> bytes:
    return _read_array(source, start, stop - start, np.dtype("u1")).tobytes()


def _read_array(source: bytes | Path | ByteSource, offset: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.empty(count, dtype)
    if not count:
        return array
    if isinstance(source, bytes):
        array[:] = np.frombuffer(source, dtype, count, offset)
        return array
    view, got = array.data.cast("B"), 0
    if not isinstance(source, Path):
        got = source.read_into(offset, view)
    else:
        try:
            with source.open("rb", buffering=0) as file:
                file.seek(offset)
                while got < array.nbytes and (more := file.readinto(view[got:])):
                    got += more
        except OSError as error:
            raise storage_error(source, error) from error
    if got < array.nbytes:
        raise _refused("truncated", f"The file ended {array.nbytes - got} bytes early while it was read")
    return array


def _names(codes: frozenset[str] | None = None) -> str:
    return ", ".join(code for code in DTYPES if codes is None or code in codes)


def _refused(cause: str, message: str) -> errors.TensorFileError:
    return errors.TensorFileError(f"{message}.", code=cause)
