"""Squared norms of the gradients of units, and their weighted sum, without a gradient for each unit where that is
cheaper.

For G = L R with L[o, t] and R[t, i]: the squared norm is (sum L²)(sum R²) when t = 1, and the sum of (Lᵀ L) ∘ (R Rᵀ)
otherwise; and the sum of c_u L_u R_u over units is one product over units and t together. Where the gradients
themselves are small beside t they are made, and summed with one product by c.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

import numpy as np

from coterie.compute.array import Array, bind
from coterie.compute.batching import Lane, batch_graph
from coterie.compute.clipping.factors import Convolution, Factor, Gradient, Products, Whole
from coterie.compute.ir import Value
from coterie.compute.primitives import batch, rules
from coterie.compute.primitives.row import Batched
from coterie.compute.table import PRIMITIVES

# The costs below are in multiplications of a large matrix product. Moving one number through memory costs as much as
# this many of them, when it stays in the cache and when it does not; elements that stay in it.
_NEAR, _FAR, _CACHED = 4, 24, 1 << 18
# Times that a gradient of a unit is moved: written, squared, summed, and summed over units.
_PASSES = 4
# Elements of one parameter's gradients for all units that are kept at most, unless inner products were as large.
KEPT = 1 << 26


class Clippable(Protocol):
    """The gradient of one parameter for every unit, in whatever form."""

    def squares(self) -> Array:
        """The squared norm of each unit's gradient, [units]."""
        ...

    def total(self, scales: Array, kept: Array | None) -> Array:
        """The sum over units of scales[units] times gradient. kept: bool[units], units that may be counted, whatever
        numbers the gradients of the others hold; None for all.
        """
        ...


def clippable(gradient: Gradient, lanes: Mapping[Value, Lane], units: int) -> Clippable:
    """The cheapest form of a gradient, for which the factors of all units are known."""

    def mapped(value: Value) -> Array:
        lane = lanes[value]
        array = lane.array if lane.mapped else rules.broadcast_to(lane.array, (units, *lane.array.shape))
        # The square of a float16 overflows from 256 on.
        return rules.cast(array, "float32") if array.type.dtype == "float16" else array

    def matrix(factor: Factor) -> Array:
        return rules.swap_last(mapped(factor.value)) if factor.transposed else mapped(factor.value)

    match gradient:
        case Whole():
            return Each(mapped(gradient.value))
        case Convolution():
            images, cotangents = (mapped(value) for value in gradient.node.inputs)
            groups: int = gradient.node.attributes["groups"]
            unrolled = Windows(images, cotangents, gradient.node.attributes)
            o, t, i = gradient.sizes
            gram = groups * ((o + i) * t * t + t * i * _NEAR)
            return (
                unrolled if _ghost_pays(gram, groups * o * i, 2 * groups * t * t, units) else Each(unrolled.gradients())
            )
        case Products():
            lefts = [matrix(factor) for factor in gradient.left]
            lefts = [bind("negative", x) if s < 0 else x for x, s in zip(lefts, gradient.signs, strict=True)]
            rights = [matrix(factor) for factor in gradient.right]
            choice = gradient.choice
            ids = None if choice is None else rules.reshape(mapped(choice.ids), (units, choice.ids.type.size, 1))
            outer = Outer(_joined(lefts, 2), _joined(rights, 1), gradient, ids)
            o, t, i = gradient.sizes
            factors = o + i if choice is None else i if choice.left else o
            gram = factors * (t if t == 1 else t * t)
            return outer if _ghost_pays(gram, o * i, 2 * t * t, units) else Each(outer.gradients())


def _joined(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else bind("concat", *parts, axis=axis)


def _ghost_pays(gram: int, elements: int, products: int, units: int) -> bool:
    """Whether the norm of a unit's gradient is to be taken from its factors: ``gram`` multiplications for ``products``
    inner products, instead of from its elements. The product of the factors is made either way: for each unit, or once
    for all when the scales are known.
    """
    if elements * units > KEPT and products < elements:
        return True
    return gram < elements * _PASSES * (_NEAR if elements * units <= _CACHED else _FAR)


@dataclass(frozen=True, slots=True)
class Each:
    """A gradient for every unit, [units, ...]."""

    values: Array

    def squares(self) -> Array:
        return _sum_of_squares(self.values)

    def total(self, scales: Array, kept: Array | None) -> Array:
        units, *shape = self.values.shape
        flat = _only(rules.reshape(self.values, (units, self.values.size // units)), kept)
        summed = bind("matmul", rules.reshape(scales, (1, units)), flat)
        return rules.reshape(summed, tuple(shape))


@dataclass(frozen=True, slots=True)
class Outer:
    """left[units, o, t] and right[units, t, i], how the gradient is made of their product, and the ids[units, t, 1] of
    the rows that one of them picks, if it does.
    """

    left: Array
    right: Array
    form: Products
    ids: Array | None

    def gradients(self) -> Array:
        """The gradient of each unit, [units, ...]."""
        values = bind("matmul", self.left, self.right)
        for view in self.form.views:
            call = Batched(view.primitive, (values,), (True,), values.shape[0], view.attributes, batch_graph)
            ((values, _),) = PRIMITIVES[view.primitive].batch(call)
        return values

    def squares(self) -> Array:
        if self.left.shape[2] == 1:
            return _factor_of_squares(self.left) * _factor_of_squares(self.right)
        columns, rows = rules.swap_last(self.left), self.right
        left = right = None
        if self.form.choice is not None and self.ids is not None:
            same = _same(self.ids, self.form.choice.count, rows.type.dtype)
            left, right = (same, None) if self.form.choice.left else (None, same)
        if left is None and right is None:
            left, right = _factor_of_products(columns), _factor_of_products(rows)
        left = _inner_products(columns) if left is None else left
        right = _inner_products(rows) if right is None else right
        return rules.sum_over(_with_slack(left, columns.shape[2] + rows.shape[2]) * right, (1, 2))

    def total(self, scales: Array, kept: Array | None) -> Array:
        # Numbers that are 0 or 1 are kept: beside zeros they add nothing.
        picks = "" if self.form.choice is None else "left" if self.form.choice.left else "right"
        left = self.left if picks == "left" else _only(self.left, kept)
        right = self.right if picks == "right" else _only(self.right, kept)
        left, right = _scaled_smaller(left, right, scales)
        units, o, t = left.shape
        rows = rules.reshape(rules.transpose(left, (1, 0, 2)), (o, units * t))
        summed = bind("matmul", rows, rules.reshape(right, (units * t, right.shape[2])))
        for view in self.form.views:
            summed = bind(view.primitive, summed, **view.attributes)
        return summed


@dataclass(frozen=True, slots=True)
class Windows:
    """A convolution: images[units, n, C, H, W], cotangents[units, n, O, H', W'], and the attributes of its gradient."""

    images: Array
    cotangents: Array
    attributes: Mapping[str, Any]

    def gradients(self) -> Array:
        """The gradient of each unit, [units, O, C / groups, kh, kw]."""
        operands = (self.images, self.cotangents)
        call = Batched("conv_weight_gradient", operands, (True, True), len(self.images), self.attributes, batch_graph)
        ((gradients, _),) = PRIMITIVES["conv_weight_gradient"].batch(call)
        return gradients

    def squares(self) -> Array:
        units, n, channels, _, _ = self.images.shape
        outputs, height, width = self.cotangents.shape[2:]
        groups, (kh, kw) = self.attributes["groups"], self.attributes["kernel"]
        # One-hot kernels lay the elements of each window side by side.
        one_hot = np.tile(np.eye(kh * kw, dtype=self.images.type.dtype), (channels, 1))
        window = {name: self.attributes[name] for name in ("stride", "padding", "dilation")}
        kernels = Array(one_hot.reshape(channels * kh * kw, 1, kh, kw))
        elements = bind("conv", batch.folded(self.images), kernels, groups=channels, **window)
        places, each = height * width, channels // groups * kh * kw
        right = self._groups_first(elements, (units, n, groups, each, places), (0, 2, 1, 4, 3))
        left = self._groups_first(self.cotangents, (units, n, groups, outputs // groups, places), (0, 2, 3, 1, 4))
        left = rules.reshape(left, (units * groups, outputs // groups, n * places))
        right = rules.reshape(right, (units * groups, n * places, each))
        columns = _factor_of_products(rules.swap_last(left))
        products = _with_slack(columns, left.shape[1] + right.shape[2]) * _factor_of_products(right)
        return rules.sum_over(rules.reshape(products, (units, products.size // units)), (1,))

    def _groups_first(self, x: Array, shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
        return rules.transpose(rules.reshape(x, shape), order)

    def total(self, scales: Array, kept: Array | None) -> Array:
        images, cotangents = _scaled_smaller(_only(self.images, kept), _only(self.cotangents, kept), scales)
        return bind("conv_weight_gradient", batch.folded(images), batch.folded(cotangents), **self.attributes)


def _only(x: Array, kept: Array | None) -> Array:
    """x[units, ...] with zeros for units that are not kept. A product by zero would not do: 0 times infinity is NaN."""
    if kept is None:
        return x
    return bind("where", rules.reshape(kept, (kept.size, *(1,) * (x.ndim - 1))), x, rules.number(0, x))


def _sum_of_squares(x: Array) -> Array:
    """[units, ...] → [units]."""
    return rules.sum_over(x * x, tuple(range(1, x.ndim)))


def _inner_products(x: Array) -> Array:
    """Of the rows of x[units, t, n] with one another, [units, t, t]."""
    return bind("matmul", x, rules.swap_last(x))


def _factor_of_squares(x: Array) -> Array:
    """Like `_sum_of_squares`, for a product with another one: more by what underflow may hide of it, a smallest normal
    number a square. Weights could be made so that all squares of one factor are zeros and those of the other as large
    as can be: the norm would be 0, of a gradient that is longer than any bound.
    """
    return _sum_of_squares(x) + rules.number(x.size // x.shape[0] * _smallest(x), x)


def _factor_of_products(x: Array) -> Array:
    """Like `_inner_products`, for a product with others, the diagonal likewise more. What underflow hides of the sum
    over all pairs of places is at most that times the products' absolute values, of which the diagonal has 1 / t.
    """
    t, n = x.shape[1:]
    hidden = t * n * _smallest(x) * np.eye(t)
    return _inner_products(x) + Array(hidden.astype(x.type.dtype))


def _smallest(x: Array) -> float:
    return float(np.finfo(x.type.dtype).tiny)


def _with_slack(products: Array, length: int) -> Array:
    """Inner products [units, t, t] of vectors of which those of both factors have ``length`` elements, the diagonal a
    little too large.

    Where places cancel one another, the squared norm is a small difference of large products, and rounding may hide a
    part of it: an example made for that would pass the bound. The error is within sqrt(n) units in the last place, for
    n roundings that are independent of one another, of (sum over t of |l_t| |r_t|)², which is at most t times the sum
    of |l_t|² |r_t|².
    """
    t = products.shape[2]
    slack = t * sqrt(length + t * t) * float(np.finfo(products.dtype).eps)
    return products * Array((1.0 + slack * np.eye(t)).astype(products.dtype))


def _same(ids: Array, count: int, dtype: str) -> Array:
    """The inner products of one-hot rows: 1 where two ids[units, t, 1] are equal and in 0 .. count - 1, else 0."""
    below = rules.greater_mask(rules.number(count, ids), ids, dtype)
    inside = below * rules.greater_mask(ids, rules.number(-1, ids), dtype)
    return rules.equal_mask(ids, rules.swap_last(ids), dtype) * inside


def _scaled_smaller(a: Array, b: Array, scales: Array) -> tuple[Array, Array]:
    def scaled(x: Array) -> Array:
        return x * rules.reshape(scales, (scales.size, *(1,) * (x.ndim - 1)))

    return (scaled(a), b) if a.size <= b.size else (a, scaled(b))
