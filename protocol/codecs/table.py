"""The codecs there are: a grammar of names.

    name    = [pre "+"] family [":" parameter] {"+" post}

Every piece of a name is a *family* that a client may have or not; `FAMILIES` lists those of this implementation, and a
client can use a codec whose families it all has. A name has one spelling: `parse(text).name == text`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from coterie import errors
from coterie.protocol.codecs.codec import Codec, Shape
from coterie.protocol.codecs.eden import DRIVE, eden
from coterie.protocol.codecs.feedback import Feedback
from coterie.protocol.codecs.floats import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from coterie.protocol.codecs.grid import Grid
from coterie.protocol.codecs.int8 import INT8, INT8_CHANNEL, Int8
from coterie.protocol.codecs.powersgd import PowerSGD
from coterie.protocol.codecs.randk import RandomPart
from coterie.protocol.codecs.sign import SIGN
from coterie.protocol.codecs.sparse_quant import SparseQuant
from coterie.protocol.codecs.stochastic import Stochastic, qsgd, rounded, terngrad
from coterie.protocol.codecs.topk import TopK

Builder = Callable[[str | None], Codec]

MANDATORY = FLOAT32.name
EXTRA_ONLY = frozenset({FLOAT64.name})
"""Codecs that only extra vectors and accumulators may use (sums need float64; a slice of the layout is float32 to begin
with)."""

LONGEST = 64


def _without_parameter(codec: Codec) -> Builder:
    def build(parameter: str | None) -> Codec:
        if parameter is not None:
            raise ValueError(f"{codec.name} takes no parameter")
        return codec

    return build


def _fraction(make: Callable[[float], Codec]) -> Builder:
    return lambda parameter: make(float(_required(parameter)))


def _whole(make: Callable[[int], Codec]) -> Builder:
    return lambda parameter: make(int(_required(parameter)))


def _required(parameter: str | None) -> str:
    if not parameter:
        raise ValueError("it needs a parameter")
    return parameter


def _int8(parameter: str | None) -> Codec:
    if parameter is None:
        return INT8
    if parameter != "channel":
        raise ValueError("write int8 or int8:channel")
    return INT8_CHANNEL


def _eden(parameter: str | None) -> Codec:
    bits, colon, biased = _required(parameter).partition(":")
    if colon and biased != "biased":
        raise ValueError("write eden:b or eden:b:biased")
    return eden(int(bits), biased=bool(colon))


def _grid(parameter: str | None) -> Codec:
    bits, colon, norm = _required(parameter).partition(":")
    return Grid(int(bits), float(norm) if colon else None)


def _sparse_quant(parameter: str | None) -> Codec:
    return SparseQuant() if parameter is None else SparseQuant(float(parameter))


_HEADS: Mapping[str, Builder] = MappingProxyType(
    {
        **{codec.name: _without_parameter(codec) for codec in (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)},
        "int8": _int8,
        "topk": _fraction(TopK),
        "randk": _fraction(RandomPart),
        "qsgd": _whole(qsgd),
        "terngrad": _without_parameter(terngrad()),
        "round": _fraction(rounded),
        "sign": _without_parameter(SIGN),
        "eden": _eden,
        "drive": _without_parameter(DRIVE),
        "rotate+grid": _grid,
        "powersgd": _whole(PowerSGD),
        "diff_sparse_quant": _sparse_quant,
    }
)
_SHORTENING = ("float16", "bfloat16", "int8", "topk", "sign", "eden", "drive", "powersgd")
"""Heads whose error is shorter than the vector, so that error feedback stays bounded."""


def _feedback(codec: Codec, head: str) -> Codec:
    if head not in _SHORTENING or isinstance(codec, Feedback):
        raise ValueError(f"+ef goes with {', '.join(_SHORTENING)}, once and last")
    return Feedback(codec)


def _coded(codec: Codec, head: str) -> Codec:
    if not isinstance(codec, Int8 | Stochastic):
        raise ValueError("+rice goes with int8, int8:channel, qsgd and terngrad")
    return codec.coded()


_POSTS: Mapping[str, Callable[[Codec, str], Codec]] = MappingProxyType({"rice": _coded, "ef": _feedback})
_PRES = ("rotate",)

FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(piece for name in (*_HEADS, *_POSTS) for piece in name.split("+")))


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
        codec = _POSTS[post](codec, family)
    if codec.name != name:
        raise ValueError(f"write {codec.name}")
    return codec


def choose(preferred: Iterable[str], have: Iterable[str] = FAMILIES) -> str:
    """The first preferred codec whose families this client all has, that it can make with this parameter, and that
    fits slices of the layout.

    ``float32`` when there is none.
    """
    known = frozenset(have) & frozenset(FAMILIES) - EXTRA_ONLY
    return next((name for name in preferred if families(name) <= known and _exists(name)), MANDATORY)


def _exists(name: str) -> bool:
    try:
        parse(name)
    except errors.InputError:
        return False
    return True


_PROBE = Shape.flat(4096, 64)
"""Long enough that a codec whose payloads vary in size has more than one size for it."""


def varying(names: Iterable[str]) -> tuple[str, ...]:
    """Which codecs make payloads whose size depends on the vector, and so tell of it. Unknown names are passed over."""
    known = [parse(name) for name in names if _exists(name)]
    return tuple(codec.name for codec in known if codec.min_bytes(_PROBE) != codec.max_bytes(_PROBE))


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
