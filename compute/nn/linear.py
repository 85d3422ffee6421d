"""The linear layer."""

from dataclasses import dataclass

from coterie.compute.array import Array
from coterie.compute.nn.initialisers import fan_in_uniform
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_input, check_positive, require


@dataclass(frozen=True)
class Linear(Module):
    """x[B, inputs] → x @ weight + bias, [B, outputs].

    weight [inputs, outputs] and bias [outputs], both uniform in ±1/sqrt(inputs), as in PyTorch (whose weight is the
    transpose).
    """

    inputs: int
    outputs: int
    bias: bool = True

    def __post_init__(self) -> None:
        check_positive(self, inputs=self.inputs, outputs=self.outputs)

    def specs(self) -> dict[str, ParameterSpec]:
        init = fan_in_uniform(self.inputs)
        weight = {"weight": ParameterSpec((self.inputs, self.outputs), init)}
        return weight | {"bias": ParameterSpec((self.outputs,), init)} if self.bias else weight

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", self.inputs), self)
        product = x @ require(params, "weight", self)
        return product + require(params, "bias", self) if self.bias else product
