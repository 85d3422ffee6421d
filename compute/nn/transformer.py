"""The block of a transformer."""

from dataclasses import dataclass

from coterie.compute.array import Array
from coterie.compute.nn.activations import GELU
from coterie.compute.nn.attention import MultiHeadAttention
from coterie.compute.nn.dropout import Dropout
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, part, prefixed
from coterie.compute.nn.normalisation import LayerNorm


@dataclass(frozen=True)
class TransformerBlock(Module):
    """x[B, T, size] → [B, T, size]: x + attention(norm1(x)), then x + down(gelu(up(norm2(x)))): normalised before each
    part (Xiong et al. 2020).

    hidden: between up and down, 4 size unless given. dropout: of both parts' results before they are added.
    """

    size: int
    heads: int
    hidden: int | None = None
    causal: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive(
            self, size=self.size, heads=self.heads, **({} if self.hidden is None else {"hidden": self.hidden})
        )
        self._parts()

    def _parts(self) -> dict[str, Module]:
        hidden = 4 * self.size if self.hidden is None else self.hidden
        return {
            "norm1": LayerNorm(self.size),
            "attention": MultiHeadAttention(self.size, self.heads, self.causal),
            "norm2": LayerNorm(self.size),
            "up": Linear(self.size, hidden),
            "gelu": GELU(),
            "down": Linear(hidden, self.size),
            "drop": Dropout(self.dropout),
        }

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed(self._parts())

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        parts = self._parts()

        def run(x: Array, *names: str) -> Array:
            for name in names:
                x = parts[name](part(params, name), x, mode)
            return x

        x = x + run(x, "norm1", "attention", "drop")
        return x + run(x, "norm2", "up", "gelu", "down", "drop")
