"""What parties that grow trees send one another: arrays of few kinds, with the place that they belong to.

Whatever comes is checked against the table of kinds and against what this side waits for.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.errors import Conflict, InputError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import canonical_json
from coterie.protocol.tensors import TensorLimits, encode_tensors, open_tensors

VERSION: Final = 1
"""Of the exchange. Another is refused."""
KEY: Final = "at"
HEADER_BYTES: Final = 1 << 16
KINDS: Final[Mapping[str, Mapping[str, tuple[str, int]]]] = {
    "opening": {"modulus": ("uint8", 1), "base": ("uint8", 1)},
    "columns": {"bins": ("int32", 1), "missing": ("uint8", 1)},
    "gradients": {"rows": ("int32", 1), "ciphers": ("uint8", 2)},
    "own": {},
    "over": {},
    "histograms": {"ciphers": ("uint8", 2)},
    "splits": {"choice": ("int32", 2), "sides": ("uint8", 1)},
    "sides": {"sides": ("uint8", 1)},
    "others": {"sides": ("uint8", 1)},
    "bits": {"sides": ("uint8", 1)},
}
"""What is in a message of each kind: names, dtypes and how many axes."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class TreePlace:
    """Where a message belongs. call: of the session; tree, level: from 0, and 0 where a kind has none."""

    kind: str
    tree: int = 0
    level: int = 0

    def text(self, call: int) -> str:
        """As a message says it."""
        said = {"trees": VERSION, "call": call, "kind": self.kind, "tree": self.tree, "level": self.level}
        return canonical_json(said).decode()

    def __str__(self) -> str:
        return f"{self.kind} of tree {self.tree}, level {self.level}"


@dataclass(frozen=True)
class Tell:
    """A message for a partner."""

    role: str
    place: TreePlace
    arrays: ArraysByName = field(default_factory=dict[str, NDArray[Any]])


@dataclass(frozen=True)
class Hear:
    """A message that must come from a partner next, of one of some kinds.

    limit: its most bytes, beside the header.
    """

    role: str
    places: tuple[TreePlace, ...]
    limit: int


@dataclass(frozen=True)
class Heard:
    """A message that has come, of one of the places that were waited for."""

    place: TreePlace
    arrays: ArraysByName


Side: TypeAlias = Generator[Tell | Hear, Heard, Result]
"""A program: it yields what it sends and what it waits for, and is sent what has come. What is sent to it after a
`Tell` is not looked at.
"""
NOTHING: Final = Heard(TreePlace("nothing"), {})
"""What a side is sent after a `Tell`."""


def write_message(tell: Tell, call: int) -> bytes:
    """A message as it is sent."""
    return encode_tensors(tell.arrays, {KEY: tell.place.text(call)})


def read_message_of(data: bytes, hear: Hear, call: int) -> Heard:
    """A message that has come.

    Raises Conflict (``session_step``) for one of another place, call or version, and InputError (``session_values``)
    for other arrays than its kind has; TensorFileError.
    """
    file = open_tensors(data, TensorLimits(max_bytes=hear.limit + HEADER_BYTES))
    said = file.metadata.get(KEY, "")
    place = next((place for place in hear.places if place.text(call) == said), None)
    if place is None:
        expected = " or ".join(place.text(call) for place in hear.places)
        raise Conflict(
            f"{hear.role} is at {said[:200] or 'an unknown place'}, and this role waits for {expected}.",
            hint="All roles run the same version of coterie and make the same calls in the same order.",
            code="session_step",
        )
    found = {name: file.tensor(name) for name in file.tensors}
    shapes = {name: (value.dtype.name, value.ndim) for name, value in found.items()}
    if shapes != dict(KINDS[place.kind]):
        unusable(hear.role, place, f"other arrays than {place.kind} have")
    return Heard(place, found)


def unusable(role: str, place: TreePlace, what: str) -> NoReturn:
    """Raise InputError (``session_values``) for a message that is not what it must be."""
    raise InputError(
        f"{role} sent {what}, in {place}.",
        hint="Ask the partner which program it runs, and whether its data changed.",
        code="session_values",
    )


def to_bits(sides: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Which rows go left, eight to a byte."""
    return np.packbits(sides)


def from_bits(bits: NDArray[Any], count: int, role: str, place: TreePlace) -> NDArray[np.bool_]:
    """``count`` rows of `to_bits`. Raises InputError (``session_values``) for another number of bytes."""
    if len(bits) != -(-count // 8):
        unusable(role, place, f"{len(bits)} bytes of sides for {count} rows")
    return np.unpackbits(bits, count=count).astype(np.bool_)
