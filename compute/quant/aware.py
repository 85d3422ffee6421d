"""Quantisation-aware training: a model whose linear and convolution layers already compute with the numbers of levels.

It is a module like any other, so a `Trainer` and an `Experiment` take it as it is. Weights stay float32 and are
rounded anew at every step; the ranges of activations are running statistics, federated as such.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, require
from coterie.compute.quant.affine import highest, lowest
from coterie.compute.quant.fake import fake_quantise
from coterie.compute.quant.histogram import Range
from coterie.compute.quant.settings import Form, QuantSettings
from coterie.compute.quant.shared_zero import shared_zero
from coterie.errors import InputError

LOW, HIGH, SEEN = "input_low", "input_high", "input_seen"
"""Buffers [1] of a layer: running extremes of its input, and how much of them there is (0 before the first step)."""

MOMENTUM = 0.1
_SMALLEST = float(np.finfo(np.float32).smallest_normal)
_DEFAULT = QuantSettings()


def qat(model: Module, settings: QuantSettings = _DEFAULT) -> Module:
    """The model with every `nn.Linear` and `nn.Conv2d` in it quantised as `quant.quantise` will quantise them: weights
    by their own extremes, inputs by running extremes of what training saw. The parameters keep their names; each such
    layer has the buffers ``input_low``, ``input_high`` and ``input_seen`` beside them.

    Layers are found in Sequential and in any module that holds modules in its fields; a module that makes its parts
    when it is called (a TransformerBlock, a GRU) stays as it is, in float32. Running extremes move by a tenth of the
    way at each step, and are corrected for where they began; rows without weight move nothing. Before the first step
    inputs are not quantised.

    Raises InputError for a model in which there is no such layer. Differential privacy refuses running statistics:
    under it, quantise weights alone (activations=None), or after training.
    """

    def quantised(layer: Module) -> Module | None:
        return QuantAware(layer, settings) if isinstance(layer, Linear | Conv2d) else None

    found = _rewritten(model, quantised)
    if found is model:
        raise InputError(
            f"qat: there is no nn.Linear or nn.Conv2d in {type(model).__name__} that can be reached.",
            hint="Put the model together with nn.Sequential, or hold its parts in fields of a frozen dataclass.",
        )
    return found


def float_model(model: Module) -> Module:
    """The model that ``qat`` was given: the same layers without levels."""

    def plain(layer: Module) -> Module | None:
        return layer.layer if isinstance(layer, QuantAware) else None

    return _rewritten(model, plain)


def layers_of(model: Module) -> tuple["QuantAware", ...]:
    """The quantised layers of a model, in the order in which it holds them."""
    found: list[QuantAware] = []

    def collect(layer: Module) -> None:
        if isinstance(layer, QuantAware):
            found.append(layer)

    _rewritten(model, collect)
    return tuple(found)


def learned_ranges(model: Module, params: Mapping[str, NDArray]) -> dict[str, Range]:
    """The range of the input of every quantised layer, by the name of the layer's weight.

    Raises InputError for a layer that no training step has reached, and for parameters that are not the model's.
    """
    found: dict[str, Range] = {}
    for name in model.specs():
        if name.rpartition(".")[2] != SEEN:
            continue
        prefix = name.removesuffix(SEEN)
        if missing := [key for key in (LOW, HIGH, SEEN) if prefix + key not in params]:
            raise InputError(f"The parameters lack {prefix + missing[0]!r}.", hint="Pass all that training returned.")
        low, high, seen = (np.float32(params[prefix + key][0]) for key in (LOW, HIGH, SEEN))
        if not seen > 0:
            raise InputError(
                f"The layer of {prefix + 'weight'!r} has seen no batch, so the range of its input is not known.",
                hint="Train at least one step before.",
            )
        found[prefix + "weight"] = (float(low / seen), float(high / seen))
    return found


@dataclass(frozen=True)
class QuantAware(Module):
    """One layer, computing with the numbers of levels."""

    layer: Linear | Conv2d
    settings: QuantSettings

    def specs(self) -> dict[str, ParameterSpec]:
        buffers = {name: ParameterSpec((1,), Constant(0.0), "buffer") for name in (LOW, HIGH, SEEN)}
        return self.layer.specs() | (buffers if self.settings.activations is not None else {})

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        # Levels are made of float32, also in a model that computes in another precision.
        given, dtype = require(params, "weight", self), x.dtype
        weight = _levels_of_weight(self.layer, xp.astype(given, xp.float32), self.settings)
        weight = xp.astype(weight, given.dtype)
        x = (
            x
            if self.settings.activations is None
            else self._levels_of_input(params, x, mode, self.settings.activations)
        )
        x = xp.astype(x, dtype)
        own = {name: params[name] for name in self.layer.specs() if name in params}
        return self.layer({**own, "weight": weight}, x, mode)

    def _levels_of_input(self, params: Parameters, x: Array, mode: Mode, form: Form) -> Array:
        low, high, seen = (require(params, name, self) for name in (LOW, HIGH, SEEN))
        x = xp.astype(x, xp.float32)
        if mode.training:
            low, high, seen = _moved(x, mode.weight, low, high, seen)
            if mode.record is not None:
                for name, value in ((LOW, low), (HIGH, high), (SEEN, seen)):
                    mode.record(params[name], value)
        some = xp.greater(seen, 0.0)
        share = xp.where(some, seen, xp.ones((1,)))
        bits = self.settings.activation_bits
        scale, zero = _line(low / share, high / share, bits, form)
        scale, zero = (xp.reshape(ops.stop_gradient(part), (1,) * x.ndim) for part in (scale, zero))
        done = fake_quantise(x, scale, zero, low=lowest(bits, form), high=highest(bits, form))
        return xp.where(xp.reshape(some, (1,) * x.ndim), done, x)


def _moved(x: Array, weight: Array | None, low: Array, high: Array, seen: Array) -> tuple[Array, Array, Array]:
    """The running extremes after a batch. 0 is always within them, so rows without weight are taken for zeros."""
    x, step = ops.stop_gradient(x), xp.full((1,), MOMENTUM)
    if weight is not None:
        counts = xp.astype(xp.greater(weight, 0.0), x.dtype)
        x = x * xp.reshape(counts, (x.shape[0], *(1,) * (x.ndim - 1)))
        step = step * xp.reshape(xp.max(counts), (1,))
    least, most = (xp.reshape(end, (1,)) for end in (xp.minimum(xp.min(x), 0.0), xp.maximum(xp.max(x), 0.0)))
    return low + step * (least - low), high + step * (most - high), seen + step * (1.0 - seen)


def _levels_of_weight(layer: Linear | Conv2d, weight: Array, settings: QuantSettings) -> Array:
    """The weight of a layer as it is after quantisation; outputs are the first axis."""
    held, form, bits = ops.stop_gradient(weight), settings.weights, settings.weight_bits
    axes = tuple(range(1 if settings.per_channel else 0, weight.ndim))
    low, high = xp.min(held, axis=axes, keepdims=True), xp.max(held, axis=axes, keepdims=True)
    low, high = xp.minimum(low, 0.0), xp.maximum(high, 0.0)
    if isinstance(layer, Conv2d) and form == "asymmetric" and settings.per_channel:
        scale, zero = shared_zero(low, high, highest(bits, form))
    else:
        scale, zero = _line(low, high, bits, form)
    return fake_quantise(weight, scale, zero, low=lowest(bits, form), high=highest(bits, form))


def _line(low: Array, high: Array, bits: int, form: Form) -> tuple[Array, Array]:
    """Scale and zero of a range around 0, by the arithmetic of `affine.affine`."""
    top = float(highest(bits, form))
    width = xp.maximum(-low, high) if form == "symmetric" else high - low
    scale = width / top
    scale = xp.where(xp.greater_equal(scale, _SMALLEST), scale, xp.ones_like(scale))
    if form == "symmetric":
        return scale, xp.zeros_like(scale)
    return scale, xp.clip(xp.round(-low / scale), 0.0, top)


def _rewritten(module: Module, rule: Callable[[Module], Module | None]) -> Module:
    """The module with every part replaced for which the rule gives another; itself where nothing changes."""
    replaced = rule(module)
    if replaced is not None:
        return replaced
    if not is_dataclass(module):
        return module
    changed: dict[str, Any] = {}
    for each in fields(module):
        value = getattr(module, each.name)
        after = _rewritten_value(value, rule)
        if after is not value:
            changed[each.name] = after
    if not changed:
        return module
    # Not dataclasses.replace: a module may have an __init__ of its own, as Sequential has.
    made = copy.copy(module)
    for name, value in changed.items():
        object.__setattr__(made, name, value)
    return made


def _rewritten_value(value: Any, rule: Callable[[Module], Module | None]) -> Any:
    if isinstance(value, Module):
        return _rewritten(value, rule)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        after = tuple(_rewritten_value(item, rule) for item in items)
        return items if all(new is old for new, old in zip(after, items, strict=True)) else after
    return value
