"""How a batch of embeddings or gradients is written as tensors of a message.

======================  ===============================================================================================
name                    tensors, for the key ``k`` and a batch of B rows of w numbers
======================  ===============================================================================================
float32                 ``k`` float32[B, w]: as they are
float16                 ``k`` float16[B, w]: rounded to nearest; what overflows is refused
int8, int7, … int1      ``k`` uint8: whole numbers of b bits, packed (`coterie.protocol.codecs.packing`);
                        ``k/range`` float32[2]: the least and the largest of the batch. Number n stands for
                        least + n · (largest - least) / (2**b - 1), in float64, rounded to float32
topk:p                  ``k`` float32[B, m] and ``k/places`` (uint8, uint16 or int32)[B, m]: of each row the m = ⌈p·w⌉
                        largest magnitudes and their places, which rise; the others are 0. Of equal ones the first
======================  ===============================================================================================

A number between two levels goes to the nearer one, or, where draws are given, up with the probability that makes its
mean right: small gradients would else all be rounded one way, step after step.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from coterie.errors import InputError, UpdateRefused
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.codecs.packing import pack, packed_size, unpack

FLOAT32: Final = "float32"
_INT: Final = re.compile("int([1-8])")
_TOPK: Final = re.compile(r"topk:(0\.[0-9]{1,6}|1)")

CutRows: TypeAlias = npt.NDArray[np.float32]
RoundingDraws: TypeAlias = Callable[[int], npt.NDArray[np.float32]]
"""A count → so many uniform numbers in [0, 1)."""
CutTypes: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
"""dtype and shape of tensors by name."""


@dataclass(frozen=True)
class CutForm:
    """One row of the table.

    types: the tensors of a batch under a key, ``[B, w]``.
    write: the numbers of a batch, with draws or None → its tensors.
    read: its tensors, of these types → the numbers. Raises InputError (``malformed``).
    """

    types: Callable[[str, int, int], CutTypes]
    write: Callable[[str, CutRows, RoundingDraws | None], ArraysByName]
    read: Callable[[str, int, int, ArraysByName], CutRows]


def form_of(name: str) -> CutForm:
    """The form of this name. Raises ValueError for one that is not in the table."""
    whole, share = _INT.fullmatch(name), _TOPK.fullmatch(name)
    if whole:
        return _levels(int(whole[1]))
    if share and float(share[1]) > 0:
        return _largest(float(share[1]))
    if name in _FLOATS:
        return _FLOATS[name]
    raise ValueError("compression is one of float32, float16, int8, int7, … int1 and topk:p with p above 0 and up to 1")


def written(name: str, key: str, values: npt.NDArray[Any], draws: RoundingDraws | None) -> ArraysByName:
    """The tensors that are sent for the numbers of a batch, ``[B, …]`` and finite.

    draws: for rounding at random; None for rounding to nearest.
    Raises InputError (``out_of_range``) for a number that float16 cannot hold.
    """
    return form_of(name).write(key, np.ascontiguousarray(values, np.float32).reshape(len(values), -1), draws)


def types_of(name: str, key: str, shape: tuple[int, ...]) -> CutTypes:
    """What `written` gives for numbers of this shape."""
    return form_of(name).types(key, shape[0], math.prod(shape[1:]))


def bytes_of(name: str, shape: tuple[int, ...]) -> int:
    """The bytes of the tensors of a batch of this shape, without the file's header."""
    types = types_of(name, "k", shape)
    return sum(np.dtype(dtype).itemsize * math.prod(size) for dtype, size in types.values())


def read(name: str, key: str, tensors: ArraysByName, shape: tuple[int, ...]) -> CutRows:
    """The numbers of a batch of this shape, from tensors of the types that `types_of` says.

    Raises InputError (``malformed``) for tensors that `written` does not make.
    """
    return form_of(name).read(key, shape[0], math.prod(shape[1:]), tensors).reshape(shape)


def _malformed(what: str) -> InputError:
    return InputError(f"Numbers of a cut are malformed: {what}.", code="malformed")


def _as_float16(key: str, rows: CutRows, draws: RoundingDraws | None) -> ArraysByName:
    if np.abs(rows).max(initial=0.0) >= 65520.0:
        raise InputError(
            "A number of the cut is larger than float16 holds, 65504.",
            hint="Choose another compression, or a model whose embeddings are bounded, for example by nn.Tanh().",
            code="out_of_range",
        )
    return {key: rows.astype(np.float16)}


_FLOATS: Mapping[str, CutForm] = {
    FLOAT32: CutForm(
        types=lambda key, rows, width: {key: ("float32", (rows, width))},
        write=lambda key, rows, draws: {key: rows},
        read=lambda key, rows, width, tensors: tensors[key],
    ),
    "float16": CutForm(
        types=lambda key, rows, width: {key: ("float16", (rows, width))},
        write=_as_float16,
        read=lambda key, rows, width, tensors: tensors[key].astype(np.float32),
    ),
}


def _levels(bits: int) -> CutForm:
    """Whole numbers of so many bits between the least and the largest of a batch."""
    most = (1 << bits) - 1

    def types(key: str, rows: int, width: int) -> CutTypes:
        return {
            key: ("uint8", (packed_size(rows * width, bits),)),
            f"{key}/range": ("float32", (2,)),
        }

    def write(key: str, rows: CutRows, draws: RoundingDraws | None) -> ArraysByName:
        least, largest = (float(rows.min()), float(rows.max())) if rows.size else (0.0, 0.0)
        step = (largest - least) / most
        places = (rows.astype(np.float64) - least) / step if step > 0 else np.zeros(rows.shape)
        added = 0.5 if draws is None else draws(rows.size).reshape(rows.shape).astype(np.float64)
        codes = np.minimum(np.floor(places + added), most).astype(np.uint8)
        found = np.frombuffer(pack(codes.reshape(-1), bits), np.uint8)
        return {key: found, f"{key}/range": np.array([least, largest], np.float32)}

    def restore(key: str, rows: int, width: int, tensors: ArraysByName) -> CutRows:
        least, largest = (float(value) for value in tensors[f"{key}/range"])
        if not (math.isfinite(least) and math.isfinite(largest) and least <= largest):
            raise _malformed(f"{key}/range is no range")
        try:
            codes = unpack(tensors[key].tobytes(), rows * width, bits).reshape(rows, width)
        except UpdateRefused as error:
            raise _malformed(error.message.rstrip(".")) from None
        return (least + codes.astype(np.float64) * ((largest - least) / most)).astype(np.float32)

    return CutForm(types=types, write=write, read=restore)


def _largest(share: float) -> CutForm:
    """The largest magnitudes of each row."""

    def count(width: int) -> int:
        return max(1, math.ceil(round(share * width, 9))) if width else 0

    def places_of(width: int) -> str:
        return "uint8" if width <= 1 << 8 else "uint16" if width <= 1 << 16 else "int32"

    def types(key: str, rows: int, width: int) -> CutTypes:
        kept = count(width)
        return {key: ("float32", (rows, kept)), f"{key}/places": (places_of(width), (rows, kept))}

    def write(key: str, rows: CutRows, draws: RoundingDraws | None) -> ArraysByName:
        kept = count(rows.shape[1])
        places = np.sort(np.argsort(-np.abs(rows), axis=1, kind="stable")[:, :kept], axis=1)
        values = np.take_along_axis(rows, places, axis=1)
        return {key: values, f"{key}/places": places.astype(places_of(rows.shape[1]))}

    def restore(key: str, rows: int, width: int, tensors: ArraysByName) -> CutRows:
        places = tensors[f"{key}/places"].astype(np.int64)
        if places.size and (places.min() < 0 or places.max() >= width or (np.diff(places, axis=1) <= 0).any()):
            raise _malformed(f"{key}/places do not rise within the row")
        found = np.zeros((rows, width), np.float32)
        np.put_along_axis(found, places, tensors[key], axis=1)
        return found

    return CutForm(types=types, write=write, read=restore)
