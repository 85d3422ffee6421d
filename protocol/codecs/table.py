"""The codecs there are: a grammar of names.

    name    = [pre "+"] family [":" parameter] {"+" post}

Every piece of a name is a *family* that a client may have or not; `FAMILIES` lists those of this implementation, and a
client can use a codec whose families it all has. A name has one spelling: `parse(text).name == text`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from coterie import errors
from coterie.protocol.codecs.codec import Codec
from coterie.protocol.codecs.floats import FLOAT16, FLOAT32, FLOAT64
from coterie.protocol.codecs.int8 import INT8

Builder = Callable[[str | None], Codec]

MANDATORY = FLOAT32.name
EXTRA_ONLY = frozenset({FLOAT64.name})
"""Codecs that only extra vectors and accumulators may use (sums need float64; a slice of the layout is float32 to begin
with)."""

LONGEST = 64


def _plain(codec: Codec) -> Builder:
    def build(parameter: str | None) -> Codec:
        if parameter is not None:
            raise ValueError(f"{codec.name} takes no parameter")
        return codec

    return build


_HEADS: Mapping[str, Builder] = MappingProxyType(
    {codec.name: _plain(codec) for codec in (FLOAT32, FLOAT16, INT8, FLOAT64)}
)
_POSTS: Mapping[str, Callable[[Codec], Codec]] = MappingProxyType({})
_PRES: frozenset[str] = frozenset()

FAMILIES: tuple[str, ...] = (*_HEADS, *sorted(_PRES), *_POSTS)


def families(name: str) -> frozenset[str]:
    """The families that a codec's name is made of."""
    return frozenset(piece.partition(":")[0] for piece in name.split("+"))


@lru_cache(maxsize=256)
def parse(name: str) -> Codec:
    """The codec of that name. Raises errors.InputError (code ``unknown_codec``)."""
    try:
        codec = _build(name)
    except (ValueError, KeyError) as error:
        why = f": {error.args[0]}" if isinstance(error, ValueError) else ""
        raise errors.InputError(
            f"There is no codec {name[:LONGEST]!r}{why}.",
            hint=f"Choose one of {', '.join(_HEADS)}; docs/codecs.md says which parameters and additions each takes.",
            code="unknown_codec",
        ) from None
    return codec


def _build(name: str) -> Codec:
    if not 0 < len(name) <= LONGEST:
        raise ValueError(f"a name has 1 to {LONGEST} characters")
    pieces = name.split("+")
    if pieces[0] in _PRES:
        pieces[:2] = ["+".join(pieces[:2])]
    family, colon, parameter = pieces[0].partition(":")
    codec = _HEADS[family](parameter if colon else None)
    for post in pieces[1:]:
        codec = _POSTS[post](codec)
    if codec.name != name:
        raise ValueError(f"write {codec.name}")
    return codec


def choose(preferred: Iterable[str], have: Iterable[str] = FAMILIES) -> str:
    """The first preferred codec whose families this client all has and that fits slices of the layout.

    ``float32`` when there is none.
    """
    known = frozenset(have) & frozenset(FAMILIES) - EXTRA_ONLY
    return next((name for name in preferred if families(name) <= known), MANDATORY)


def unfit(names: Iterable[str]) -> tuple[str, ...]:
    """Which of the names are no codecs for slices of the layout, each with the reason."""
    found: list[str] = []
    for name in names:
        if name in EXTRA_ONLY:
            found.append(f"{name} (for sums only)")
            continue
        try:
            parse(name)
        except errors.InputError as error:
            found.append(error.message.rstrip("."))
    return tuple(found)
