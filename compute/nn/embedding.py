"""The embedding table, and embeddings of positions."""

from dataclasses import dataclass

from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import Constant, Normal
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_input,
    check_positive,
    refuse_shape,
    require,
)


@dataclass(frozen=True)
class Embedding(Module):
    """ids int32[...] → rows of the table, [..., size]. weight [rows, size], standard normal as in PyTorch. Ids must be
    in 0 .. rows - 1; others are refused with InputError, also by a trainer and in plans.
    """

    rows: int
    size: int

    def __post_init__(self) -> None:
        check_positive(self, rows=self.rows, size=self.size)

    def specs(self) -> dict[str, ParameterSpec]:
        return {"weight": ParameterSpec((self.rows, self.size), Normal())}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.embedding(require(params, "weight", self), x)


@dataclass(frozen=True)
class PositionalEmbedding(Module):
    """x[B, T, size] → x plus one learned row for each position, T at most ``length``. weight [length, size], zeros."""

    length: int
    size: int

    def __post_init__(self) -> None:
        check_positive(self, length=self.length, size=self.size)

    def specs(self) -> dict[str, ParameterSpec]:
        return {"weight": ParameterSpec((self.length, self.size), Constant(0.0))}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "T", self.size), self)
        if x.shape[1] > self.length:
            wanted = f"[B, T, {self.size}] of at most {self.length} positions T"
            refuse_shape(self, wanted, x, hint="Cut the sequences, or give it a greater length.")
        return x + require(params, "weight", self)[: x.shape[1]]
