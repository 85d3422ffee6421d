"""What parties of a method send one another: arrays of few kinds, with the place that they belong to.

A method says its kinds of messages; whatever comes is checked against its kind and against what this side waits for.
Its programs are generators without I/O: who runs them sends and receives (`Side`).
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from numpy.typing import NDArray

from coterie.errors import Conflict, InputError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import canonical_json
from coterie.protocol.tensors import TensorLimits, encode_tensors, open_tensors

KEY: Final = "at"
HEADER_BYTES: Final = 1 << 16

Result = TypeVar("Result")


@dataclass(frozen=True)
class ExchangeKind:
    """A kind of message.

    method, version: whose it is; another version is refused.
    arrays: names, dtypes and how many axes.
    counters: what numbers the messages of this kind, as ("tree", "level").
    """

    method: str
    version: int
    name: str
    arrays: Mapping[str, tuple[str, int]]
    counters: tuple[str, ...]


@dataclass(frozen=True)
class ExchangePlace:
    """Where a message belongs. at: a number, from 0, of each counter of its kind."""

    kind: ExchangeKind
    at: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of the kind."""
        return self.kind.name

    def text(self, call: int) -> str:
        """As a message says it. call: of the session."""
        counted = dict(zip(self.kind.counters, self.at, strict=True))
        return canonical_json(
            {self.kind.method: self.kind.version, "call": call, "kind": self.name, **counted}
        ).decode()

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {number}" for name, number in zip(self.kind.counters, self.at, strict=True))
        return f"{self.name} of {counted}"


@dataclass(frozen=True)
class Tell:
    """A message for a partner."""

    role: str
    place: ExchangePlace
    arrays: ArraysByName = field(default_factory=dict[str, NDArray[Any]])


@dataclass(frozen=True)
class Hear:
    """A message that must come from a partner next, of one of some places.

    limit: its most bytes, beside the header.
    """

    role: str
    places: tuple[ExchangePlace, ...]
    limit: int


@dataclass(frozen=True)
class Heard:
    """A message that has come, of one of the places that were waited for."""

    place: ExchangePlace
    arrays: ArraysByName


Side: TypeAlias = Generator[Tell | Hear, Heard, Result]
"""A program: it yields what it sends and what it waits for, and is sent what has come. What is sent to it after a
`Tell` is not looked at.
"""
NOTHING: Final = Heard(ExchangePlace(ExchangeKind("", 0, "nothing", {}, ()), ()), {})
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
    if shapes != dict(place.kind.arrays):
        unusable(hear.role, place, f"other arrays than {place.name} have")
    return Heard(place, found)


def unusable(role: str, place: ExchangePlace, what: str) -> NoReturn:
    """Raise InputError (``session_values``) for a message that is not what it must be."""
    raise InputError(
        f"{role} sent {what}, in {place}.",
        hint="Ask the partner which program it runs, and whether its data changed.",
        code="session_values",
    )
