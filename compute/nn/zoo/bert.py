"""BERT's encoder with a head for classes (Devlin et al. 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.activations import GELU, Tanh
from coterie.compute.nn.attention import HIDDEN, MultiHeadAttention
from coterie.compute.nn.dropout import Dropout
from coterie.compute.nn.initialisers import Normal
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_input,
    check_positive,
    part,
    prefixed,
    refuse_shape,
    require,
)
from coterie.compute.nn.normalisation import LayerNorm
from coterie.compute.nn.recomputed import recomputed
from coterie.compute.optim.optimizer import check_whole
from coterie.errors import InputError

EPSILON = 1e-12
"""Of BERT's normalisations."""

SEGMENTS = 2
_FIRST = Normal(0.02)
_NAMES = ("ids", "segments")


@dataclass(frozen=True)
class BertEmbedding(Module):
    """ids int32[B, T] → [B, T, size]: the sum of the rows of each id, its position and its segment, normalised.

    length: the most positions.
    """

    vocabulary: int
    size: int
    length: int = 512
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, vocabulary=self.vocabulary, size=self.size, length=self.length)
        Dropout(self.dropout)

    def specs(self) -> dict[str, ParameterSpec]:
        rows = {"words": self.vocabulary, "positions": self.length, "segments": SEGMENTS}
        tables = {name: ParameterSpec((count, self.size), _FIRST) for name, count in rows.items()}
        return tables | prefixed({"norm": LayerNorm(self.size, EPSILON)})

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL, segments: Array | None = None) -> Array:
        """segments: int32[B, T] of 0 and 1; all 0 unless given."""
        check_input(x, ("B", "T"), self)
        if x.shape[1] > self.length:
            wanted = f"[B, T] of at most {self.length} positions T"
            refuse_shape(self, wanted, x, hint="Cut the sequences, or give it a greater length.")
        words, positions, kinds = (require(params, name, self) for name in ("words", "positions", "segments"))
        kind = kinds[:1] if segments is None else ops.embedding(kinds, segments)
        summed = ops.embedding(words, x) + positions[: x.shape[1]] + kind
        normal = LayerNorm(self.size, EPSILON)(part(params, "norm"), summed, mode)
        return Dropout(self.dropout)({}, normal, mode)


@dataclass(frozen=True)
class BertLayer(Module):
    """x[B, T, size] → [B, T, size]: norm1(x + attention(x)), then norm2(x + down(gelu(up(x)))): normalised after each
    part, as Vaswani et al. 2017 did it. gelu is in its tanh form. hidden: between up and down, 4 size unless given.
    """

    size: int
    heads: int
    hidden: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive(
            self, size=self.size, heads=self.heads, **({} if self.hidden is None else {"hidden": self.hidden})
        )
        self._parts()

    def _parts(self) -> dict[str, Module]:
        hidden = 4 * self.size if self.hidden is None else self.hidden
        return {
            "attention": MultiHeadAttention(self.size, self.heads),
            "norm1": LayerNorm(self.size, EPSILON),
            "up": Linear(self.size, hidden),
            "gelu": GELU(),
            "down": Linear(hidden, self.size),
            "norm2": LayerNorm(self.size, EPSILON),
            "drop": Dropout(self.dropout),
        }

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed(self._parts())

    def __call__(
        self, params: Parameters, x: Array, mode: Mode = EVAL, mask: Array | None = None, first: int | None = None
    ) -> Array:
        """The output for input ``x``.

        mask: added to the scores of attention, of a shape that broadcasts to [B, heads, T, T].
        first: how many positions of the output are wanted, from the front. All unless given.
        """
        parts = self._parts()

        def run(x: Array, *names: str) -> Array:
            for name in names:
                x = parts[name](part(params, name), x, mode)
            return x

        attention = MultiHeadAttention(self.size, self.heads)
        seen = attention(part(params, "attention"), x, mode, mask, first)
        x = x if first is None else x[:, :first]
        x = run(x + run(seen, "drop"), "norm1")
        return run(x + run(x, "up", "gelu", "down", "drop"), "norm2")


@dataclass(frozen=True)
class Bert(Module):
    """ids int32[B, T], or {"ids", "segments"} of that shape → logits [B, classes], of what the encoder makes of the
    first position (the CLS token): a linear layer with tanh (``pooler``), then one to the classes.

    padding: the id of padding, which no position sees; None where there is none. As BERT has it, id 0.
    """

    vocabulary: int
    classes: int
    size: int
    heads: int
    layers: int
    hidden: int | None
    length: int
    dropout: float
    padding: int | None

    def __post_init__(self) -> None:
        check_positive(self, classes=self.classes)
        check_whole("bert", layers=self.layers)
        self.specs()

    @property
    def recomputes(self) -> bool:
        return True

    def _parts(self) -> dict[str, Module]:
        layer = BertLayer(self.size, self.heads, self.hidden, self.dropout)
        return {
            "embedding": BertEmbedding(self.vocabulary, self.size, self.length, self.dropout),
            **{f"layer{number}": layer for number in range(self.layers)},
            "pooler": Linear(self.size, self.size),
            "tanh": Tanh(),
            "drop": Dropout(self.dropout),
            "head": Linear(self.size, self.classes),
        }

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed(self._parts())

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        ids, segments = _inputs(x)
        parts = self._parts()
        embedding = BertEmbedding(self.vocabulary, self.size, self.length, self.dropout)
        y = embedding(part(params, "embedding"), ids, mode, segments)
        mask = None if self.padding is None else _unseen(ids, self.padding, y.dtype.name)
        layer = BertLayer(self.size, self.heads, self.hidden, self.dropout)
        for number in range(self.layers):
            # Of what the last layer makes, the first position alone is read.
            first = 1 if number == self.layers - 1 else None
            y = recomputed(partial(layer, part(params, f"layer{number}"), mask=mask, first=first), y, mode)
        y = y[:, 0, :]
        for name in ("pooler", "tanh", "drop", "head"):
            y = parts[name](part(params, name), y, mode)
        return y


def _unseen(ids: Array, padding: int, dtype: str) -> Array:
    """[B, 1, 1, T]: 0 for each token, for padding what hides a score of this dtype."""
    hidden = xp.astype(xp.equal(ids, Array(np.array(padding, ids.dtype))), dtype) * HIDDEN[dtype]
    return xp.reshape(hidden, (ids.shape[0], 1, 1, ids.shape[1]))


def _inputs(x: object) -> tuple[Array, Array | None]:
    if isinstance(x, Array):
        return x, None
    given: Mapping[str, Array] = cast(Mapping[str, Array], x) if isinstance(x, Mapping) else {}
    if not set(_NAMES) <= set(given):
        found = ", ".join(map(str, given)) or f"a {type(cast(object, x)).__name__}"
        raise InputError(
            f"Bert takes one array of ids, or arrays by name, {' and '.join(_NAMES)}; it was given {found}.",
            hint='In an experiment, declare Feature(name="ids", dtype="int32", shape=(T,)), and "segments" like it.',
        )
    return given["ids"], given["segments"]


def bert(
    vocabulary: int = 30522,
    classes: int = 2,
    size: int = 256,
    heads: int = 4,
    layers: int = 4,
    *,
    hidden: int | None = None,
    length: int = 512,
    dropout: float = 0.1,
    padding: int | None = 0,
) -> Bert:
    """BERT's encoder with a head for classes, as it stands of four layers of 256: ids int32[B, T] → logits [B,
    classes].

    The encoder learns 11 170 560 numbers (BERT-Mini of Turc et al. 2019), with size=768, heads=12 and layers=12
    109 482 240 (BERT-Base), and the head size + 1 for each class. padding: the id that no position sees.
    """
    return Bert(vocabulary, classes, size, heads, layers, hidden, length, dropout, padding)
