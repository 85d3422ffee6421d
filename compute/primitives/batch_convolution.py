"""Batch rules of convolution and its transposes.

Examples that share the weights are only more images. Examples with weights of their own stand beside one another as
groups of channels, so that a batch is still one convolution.
"""

from typing import Any

from coterie.compute.array_type import Array, bind
from coterie.compute.primitives import batch, rules
from coterie.compute.primitives.row import Batched


def _channels(x: Array) -> Array:
    """[examples, images, channels, ...] as [images, examples * channels, ...]."""
    n, images, channels = x.shape[:3]
    moved = rules.transpose(x, (1, 0, *range(2, x.ndim)))
    return rules.reshape(moved, (images, n * channels, *x.shape[3:]))


def _examples(x: Array, size: int) -> Array:
    """The inverse of :func:`_channels`."""
    images, channels = x.shape[:2]
    split = rules.reshape(x, (images, size, channels // size, *x.shape[2:]))
    return rules.transpose(split, (1, 0, *range(2, split.ndim)))


def _more_groups(call: Batched) -> dict[str, Any]:
    return {**call.attributes, "groups": call.attributes["groups"] * call.size}


def _product(call: Batched) -> Array:
    """conv(x, w) or conv_input_gradient(g, w)."""
    if not call.mapped[1]:
        return batch.images(call)
    images, weights = batch.all_mapped(call)
    return _examples(bind(call.name, _channels(images), batch.folded(weights), **_more_groups(call)), call.size)


def product(call: Batched) -> Array:
    """The rule of conv and conv_input_gradient. A bias is added afterwards, since it may be an example's own."""
    plain = Batched(call.name, call.inputs[:2], call.mapped[:2], call.size, call.attributes, call.graph)
    if any(plain.mapped):
        result = _product(plain)
    else:
        shared = bind(call.name, *plain.inputs, **call.attributes)
        result = rules.broadcast_to(shared, (call.size, *shared.shape))
    if len(call.inputs) == 2:
        return result
    bias = call.inputs[2]
    return result + rules.reshape(bias, (*(bias.shape[:1] if call.mapped[2] else (1,)), 1, bias.shape[-1], 1, 1))


def weight_gradient(call: Batched) -> Array:
    """The rule of conv_weight_gradient: every example has a gradient of its own."""
    images, cotangents = batch.all_mapped(call)
    return batch.unfolded(bind(call.name, _channels(images), _channels(cotangents), **_more_groups(call)), call.size)
