"""How a model was made smaller, as names and numbers that a plan can carry."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from coterie.compute.compress.distillation import Distilled
from coterie.compute.compress.pruning import Pruned
from coterie.compute.nn.module import Module
from coterie.compute.quant.aware import QuantAware


def compression(model: Module) -> tuple[tuple[str, dict[str, float]], ...]:
    """What of `compress` and `quant.qat` stands in a model, from the outside in: ``pruned`` (how many numbers the
    masked weights have, and the share of them that is pruned), ``quantisation_aware`` (how many layers, with how many
    bits; 0 bits where activations stay floats; once for each kind of settings), ``distilled`` (temperature and weight).

    Modules are found where `qat` finds layers: in fields of dataclasses, and in tuples there.
    """
    found: list[tuple[str, dict[str, float]]] = []
    for module in _modules(model):
        match module:
            case Pruned():
                masks = module.masks.values()
                numbers = sum(mask.size for mask in masks)
                kept = sum(int(np.count_nonzero(mask)) for mask in masks)
                share = 1.0 - kept / numbers if numbers else 0.0
                found.append(("pruned", {"numbers": float(numbers), "share": share}))
            case Distilled():
                found.append(("distilled", {"temperature": float(module.temperature), "weight": float(module.weight)}))
            case QuantAware():
                told = _levels(module)
                known = next((each for name, each in found if name == _AWARE and {**each, "layers": 0.0} == told), None)
                if known is None:
                    known = told
                    found.append((_AWARE, known))
                known["layers"] += 1.0
            case _:
                pass
    return tuple(found)


_AWARE = "quantisation_aware"


def _levels(layer: QuantAware) -> dict[str, float]:
    settings = layer.settings
    return {
        "layers": 0.0,
        "weight_bits": float(settings.weight_bits),
        "activation_bits": 0.0 if settings.activations is None else float(settings.activation_bits),
        "per_channel": float(settings.per_channel),
    }


def _modules(model: Module) -> Iterator[Module]:
    """The module itself and all that it holds; the teacher of a distilled model is no part of what is made smaller."""
    yield model
    if not is_dataclass(model):
        return
    for each in fields(model):
        if isinstance(model, Distilled) and each.name == "teacher":
            continue
        yield from _held(getattr(model, each.name))


def _held(value: Any) -> Iterator[Module]:
    if isinstance(value, Module):
        yield from _modules(value)
    elif isinstance(value, tuple | list):
        for item in cast("tuple[Any, ...]", value):
            yield from _held(item)
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _held(item)
