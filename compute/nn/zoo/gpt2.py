"""GPT-2's decoder (Radford et al. 2019), whose table of tokens also gives the logits."""

from dataclasses import dataclass
from functools import partial

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.dropout import Dropout
from coterie.compute.nn.initialisers import Normal
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
from coterie.compute.nn.transformer import TransformerBlock


@dataclass(frozen=True)
class GPT2(Module):
    """ids int32[B, T] → logits of the next token at every position, [B, T, vocabulary], T at most ``length``.

    Causal, normalised before each part; the logits are products with the table of tokens. As it stands it learns
    124 439 808 numbers.
    """

    vocabulary: int = 50257
    size: int = 768
    heads: int = 12
    layers: int = 12
    length: int = 1024
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, vocabulary=self.vocabulary, layers=self.layers, length=self.length)
        self._parts()

    @property
    def recomputes(self) -> bool:
        return True

    def _parts(self) -> dict[str, Module]:
        block = TransformerBlock(self.size, self.heads, causal=True, dropout=self.dropout)
        return {**{f"block{number}": block for number in range(self.layers)}, "norm": LayerNorm(self.size)}

    def specs(self) -> dict[str, ParameterSpec]:
        rows = {"tokens": (self.vocabulary, Normal(0.02)), "positions": (self.length, Normal(0.01))}
        tables = {name: ParameterSpec((count, self.size), init) for name, (count, init) in rows.items()}
        return tables | prefixed(self._parts())

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "T"), self)
        count, steps = x.shape
        if steps > self.length:
            wanted = f"[B, T] of at most {self.length} positions T"
            refuse_shape(self, wanted, x, hint="Cut the sequences, or give it a greater length.")
        tokens = require(params, "tokens", self)
        y = ops.embedding(tokens, x) + require(params, "positions", self)[:steps]
        y = Dropout(self.dropout)({}, y, mode)
        for name, module in self._parts().items():
            y = recomputed(partial(module, part(params, name)), y, mode)
        logits = xp.reshape(y, (count * steps, self.size)) @ xp.matrix_transpose(tokens)
        return xp.reshape(logits, (count, steps, self.vocabulary))
