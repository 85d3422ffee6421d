"""The embedding table."""

from dataclasses import dataclass

from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import Normal
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, require


@dataclass(frozen=True)
class Embedding(Module):
    """ids int32[...] → rows of the table, [..., size]. weight [rows, size], standard normal as in PyTorch. Ids must be
    in 0 .. rows - 1.
    """

    rows: int
    size: int

    def __post_init__(self) -> None:
        check_positive(self, rows=self.rows, size=self.size)

    def specs(self) -> dict[str, ParameterSpec]:
        return {"weight": ParameterSpec((self.rows, self.size), Normal())}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.embedding(require(params, "weight", self), x)
