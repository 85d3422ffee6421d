"""The linear layer."""

from dataclasses import dataclass
from math import prod

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import fan_in_uniform
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, refuse_shape, require


@dataclass(frozen=True)
class Linear(Module):
    """x[..., inputs] → x weightᵀ + bias, [..., outputs].

    weight [outputs, inputs] and bias [outputs], both uniform in ±1/sqrt(inputs): the layout and the first values of
    PyTorch.
    """

    inputs: int
    outputs: int
    bias: bool = True

    def __post_init__(self) -> None:
        check_positive(self, inputs=self.inputs, outputs=self.outputs)

    def specs(self) -> dict[str, ParameterSpec]:
        init = fan_in_uniform(self.inputs)
        weight = {"weight": ParameterSpec((self.outputs, self.inputs), init)}
        return weight | {"bias": ParameterSpec((self.outputs,), init)} if self.bias else weight

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        if not x.shape or x.shape[-1] != self.inputs:
            refuse_shape(self, f"[..., {self.inputs}]", x, hint="Its inputs are the size of the last axis of x.")
        rows = x if x.ndim == 2 else xp.reshape(x, (prod(x.shape[:-1]), self.inputs))
        weight, bias = require(params, "weight", self), require(params, "bias", self) if self.bias else None
        y = rows @ xp.matrix_transpose(weight)
        y = y if bias is None else y + bias
        return y if x.ndim == 2 else xp.reshape(y, (*x.shape[:-1], self.outputs))
