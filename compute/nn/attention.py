"""Multi-head self-attention."""

from dataclasses import dataclass

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_input, check_positive, part, prefixed
from coterie.errors import InputError

HIDDEN = {"float16": -3e4, "float32": -1e30, "float64": -1e30}
"""What hides a score, by dtype: far below every score, yet finite, so that exp of it is 0, and a row of it alone is a
mean and not NaN. A model in float16 has no lower number; its scores overflow not far above it.
"""


@dataclass(frozen=True)
class MultiHeadAttention(Module):
    """Self-attention x[B, T, size] → [B, T, size]: softmax(q kᵀ / sqrt(size / heads) + mask) v in every head, then a
    linear layer (Vaswani et al. 2017).

    causal: position t sees the positions 0 .. t alone. ``qkv`` makes queries, keys and values in one product: its
    weight [3 size, size] and bias [3 size] are PyTorch's ``in_proj_weight`` and ``in_proj_bias``, and those of ``out``
    are its ``out_proj``.
    """

    size: int
    heads: int
    causal: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        check_positive(self, size=self.size, heads=self.heads)
        if self.size % self.heads:
            raise InputError(f"MultiHeadAttention: {self.heads} heads must divide size {self.size}.")

    @property
    def _qkv(self) -> Linear:
        return Linear(self.size, 3 * self.size, self.bias)

    @property
    def _out(self) -> Linear:
        return Linear(self.size, self.size, self.bias)

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed({"qkv": self._qkv, "out": self._out})

    def __call__(
        self, params: Parameters, x: Array, mode: Mode = EVAL, mask: Array | None = None, first: int | None = None
    ) -> Array:
        """The output for input ``x``.

        mask: added to the scores before softmax, of a shape that broadcasts to [B, heads, T, T], or [B, heads, first,
            T].
        first: how many positions of the output are wanted, from the front: [B, first, size]. All unless given.
        """
        check_input(x, ("B", "T", self.size), self)
        (count, steps, _), each = x.shape, self.size // self.heads
        asking = steps if first is None else first
        check_positive(self, first=asking)
        if asking > steps:
            raise InputError(f"MultiHeadAttention: the first {asking} of {steps} positions are not there.")
        thirds = self._thirds(part(params, "qkv"), x, mode, asking)
        q, k, v = (xp.reshape(third, (count, third.shape[1], self.heads, each)) for third in thirds)
        scaled = xp.permute_dims(q, (0, 2, 1, 3)) * each**-0.5
        scores = scaled @ xp.permute_dims(k, (0, 2, 3, 1))
        if self.causal:
            scores = scores + Array(np.triu(np.full((asking, steps), HIDDEN[x.dtype.name]), 1).astype(x.dtype))
        if mask is not None:
            scores = scores + mask
        mixed = ops.softmax(scores, axis=-1) @ xp.permute_dims(v, (0, 2, 1, 3))
        together = xp.reshape(xp.permute_dims(mixed, (0, 2, 1, 3)), (count, asking, self.size))
        return self._out(part(params, "out"), together, mode)

    def _thirds(self, params: Parameters, x: Array, mode: Mode, asking: int) -> tuple[Array, ...]:
        """Queries of so many positions, keys and values."""
        size = self.size
        if asking == x.shape[1]:
            return ops.split(self._qkv(params, x, mode), [size] * 3, axis=2)
        parts = {name: ops.split(params[name], [size, 2 * size], axis=0) for name in self._qkv.specs()}
        asked, told = ({name: rows[place] for name, rows in parts.items()} for place in (0, 1))
        q = Linear(size, size, self.bias)(asked, x[:, :asking], mode)
        return (q, *ops.split(Linear(size, 2 * size, self.bias)(told, x, mode), [size] * 2, axis=2))
