"""The codecs there are, by name."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from coterie import errors
from coterie.protocol.codecs.codec import Codec
from coterie.protocol.codecs.floats import FLOAT16, FLOAT32, FLOAT64
from coterie.protocol.codecs.int8 import INT8

CODECS: Mapping[str, Codec] = MappingProxyType({codec.name: codec for codec in (FLOAT32, FLOAT16, INT8, FLOAT64)})

MANDATORY = FLOAT32.name
EXTRA_ONLY = frozenset({FLOAT64.name})
"""Codecs that only extra vectors may use (metric sums need float64; a slice of the layout is float32 to begin with)."""


def parse(name: str) -> Codec:
    """The codec of that name. Raises errors.InputError (code ``unknown_codec``)."""
    codec = CODECS.get(name)
    if codec is None:
        raise errors.InputError(
            f"There is no codec {name[:64]!r}.", hint=f"Choose one of {', '.join(CODECS)}.", code="unknown_codec"
        )
    return codec


def choose(preferred: Iterable[str], have: Iterable[str] = tuple(CODECS)) -> str:
    """The first preferred codec that this client has and that fits slices of the layout.

    ``float32`` when there is none.
    """
    known = frozenset(have) - EXTRA_ONLY
    return next((name for name in preferred if name in known), MANDATORY)
