"""A model whose pruned weights stay pruned, whatever trains it and however its parts are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.compute.array import Array
from coterie.compute.compress.given import Given, Masked
from coterie.compute.ir import NDArray
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, require
from coterie.errors import InputError

_MASK = ".mask"


def pruned(model: Module, masks: Mapping[str, NDArray]) -> Module:
    """The model with these masks on its weights.

    masks: by names of the model's parameters, ones and zeros of their shapes, as `by_magnitude` makes them. They are
    frozen parameters called "<weight>.mask", so a plan carries them once, beside the model, and no client uploads them.
    To go on from trained weights give a trainer ``initial=masked(weights, masks)``, and an experiment
    ``initial=model.init(0) | masked(weights, masks)``.

    Guarantees: the model computes with weight · mask, so a pruned weight has no gradient and no influence, also where a
    lossy codec, noise or momentum moves the number that is kept for it. It starts at 0, and stays exactly 0 under every
    optimizer whose step is 0 for a gradient that was always 0 (all of `compute.optim`), and under every average of
    such updates.

    Raises InputError for a mask that is no mask, or fits no parameter.
    """
    specs = model.specs()
    for name, mask in masks.items():
        if name not in specs or specs[name].shape != mask.shape:
            wanted = list(specs[name].shape) if name in specs else f"one of {', '.join(specs)}"
            raise InputError(f"pruned: there is a mask {name!r} of {list(mask.shape)}; it must be {wanted}.")
        if not ((mask == 0) | (mask == 1)).all():
            raise InputError(f"pruned: the mask {name!r} holds other numbers than 0 and 1.")
    return Pruned(model, dict(masks))


@dataclass(frozen=True, eq=False)
class Pruned(Module):
    """See :func:`pruned`, which makes it and checks its parts."""

    model: Module
    masks: Mapping[str, NDArray]

    def specs(self) -> dict[str, ParameterSpec]:
        specs = dict(self.model.specs())
        for name, mask in self.masks.items():
            specs[name] = replace(specs[name], init=Masked(specs[name].init, mask))
        return specs | {
            name + _MASK: ParameterSpec(mask.shape, Given(mask), "frozen") for name, mask in self.masks.items()
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        kept = {name: params[name] for name in self.model.specs() if name in params}
        for name in self.masks:
            kept[name] = require(params, name, self) * require(params, name + _MASK, self)
        return self.model(kept, x, mode)
