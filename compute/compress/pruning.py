"""A model whose pruned weights stay pruned, whatever trains it and however its parts are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.compute.array import Array
from coterie.compute.compress.given import Given, Masked
from coterie.compute.compress.masks import masked
from coterie.compute.ir import NDArray
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, require
from coterie.errors import InputError

_MASK = ".mask"


def pruned(model: Module, masks: Mapping[str, NDArray], start: Mapping[str, NDArray] | None = None) -> Module:
    """The model with these masks on its weights.

    masks: by names of the model's parameters, ones and zeros of their shapes, as `by_magnitude` makes them. start:
    weights to go on from, all of the model's; its own first values otherwise. The masks are frozen parameters called
    "<weight>.mask", so a plan carries them once, beside the model, and no client uploads them.

    Guarantees: the model computes with weight · mask, so a pruned weight has no gradient and no influence, also where a
    lossy codec, noise or momentum moves the number that is kept for it. It starts at 0, and stays exactly 0 under every
    optimizer whose step is 0 for a gradient that was always 0 (all of `compute.optim`), and under every average of
    such updates.

    Raises InputError for a mask that is no mask, or fits no parameter, and a start that lacks one.
    """
    specs = model.specs()
    for name, mask in masks.items():
        if name not in specs or specs[name].shape != mask.shape:
            wanted = list(specs[name].shape) if name in specs else f"one of {', '.join(specs)}"
            raise InputError(f"pruned: there is a mask {name!r} of {list(mask.shape)}; it must be {wanted}.")
        if not ((mask == 0) | (mask == 1)).all():
            raise InputError(f"pruned: the mask {name!r} holds other numbers than 0 and 1.")
    if start is not None and (missing := sorted(specs.keys() - start.keys())):
        raise InputError(f"pruned: the start lacks {', '.join(missing)}.", hint="Give all parameters of the model.")
    return Pruned(model, dict(masks), None if start is None else masked({name: start[name] for name in specs}, masks))


@dataclass(frozen=True, eq=False)
class Pruned(Module):
    """See :func:`pruned`, which makes it and checks its parts."""

    model: Module
    masks: Mapping[str, NDArray]
    start: Mapping[str, NDArray] | None = None

    def specs(self) -> dict[str, ParameterSpec]:
        specs = dict(self.model.specs())
        for name, value in (self.start or {}).items():
            specs[name] = replace(specs[name], init=Given(value))
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
