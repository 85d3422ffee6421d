"""Steps in half precision: float32 parameters, a half-precision objective, and a loss scaled against underflow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, cast

from coterie.compute import numpy as xp
from coterie.compute import tree
from coterie.compute.array import Array, as_array, bind
from coterie.compute.control.derived import custom_vjp
from coterie.compute.data.batches import WEIGHT
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_whole
from coterie.compute.step.rounding import rounded
from coterie.compute.trace import is_array
from coterie.errors import InputError

Half: TypeAlias = Literal["float16", "bfloat16"]

# The optimizer state that scaling adds: the scale, and how many good steps in a row it has made.
SCALE = "amp.scale"
GOOD = "amp.good"
# Below float32's largest number: a sum that exceeds it, or is NaN, holds an overflow.
LARGEST = 3e38


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How a step computes in half precision.

    dtype: "float16" computes in float16 tensors. ONNX Runtime's CPU provider has few float16 kernels; it computes in
    float32 between the parameters, inputs and results, where numbers truly are float16, forward and backward, so there
    it proves a model and saves no time. "bfloat16" is emulated everywhere: float32 tensors whose every value is
    rounded to the 8 significant bits of bfloat16, forward and backward.
    scale: the first loss scale. grow_after: after so many good steps in a row it doubles; None keeps it, but for the
    halving at an overflow that ``halve`` allows. halve: whether an overflow halves it.
    """

    dtype: Half = "float16"
    scale: float = 2.0**15
    grow_after: int | None = 2000
    halve: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in ("float16", "bfloat16"):
            raise InputError(f"Precision: there is no half precision {self.dtype!r}.", hint="Use float16 or bfloat16.")
        if not isinstance(cast(object, self.scale), Real) or not 1 <= self.scale <= 2.0**24:
            raise InputError(f"Precision: scale must be from 1 to 2^24, got {self.scale!r}.")
        if self.grow_after is not None:
            check_whole("Precision", grow_after=self.grow_after)


def amp(level: Literal["O0", "O1", "O2"] = "O1") -> Precision | None:
    """A precision by MindSpore's word: O0 is float32 (None), O1 float16 with a dynamic loss scale, O2 with a fixed one
    (an overflow is skipped and changes nothing). Raises InputError for another level.
    """
    levels = {"O0": None, "O1": Precision(), "O2": Precision(scale=1024.0, grow_after=None, halve=False)}
    if level not in levels:
        raise InputError(f"amp: there is no level {level!r}.", hint="Choose O0, O1 or O2.")
    return levels[level]


def loss_scale(state: Arrays) -> Array | None:
    """The number by which the loss is to be multiplied, of shape (), out of the state of ``skipping_overflows``; None
    in the state of another optimizer.
    """
    return xp.reshape(state[SCALE], ()) if SCALE in state else None


def finite(grads: Arrays) -> Array:
    """Whether no gradient is infinite or NaN, bool [1]."""
    size = xp.zeros(())
    for gradient in grads.values():
        size = size + xp.sum(xp.abs(gradient))
    return xp.reshape(xp.less(size, LARGEST), (1,))


def measured(totals: Arrays, grads: Arrays, state: Arrays) -> Arrays:
    """Sums over a batch, [1] each, which are zero where ``skipping_overflows`` skips its step: what such a step found
    may be infinite or NaN. state: of the optimizer; the sums stay as they are where it is another one.
    """
    if SCALE not in state:
        return totals
    taken = finite(grads)
    return {name: xp.where(taken, total, 0.0) for name, total in totals.items()}


def skipping_overflows(optimizer: Optimizer, precision: Precision) -> Optimizer:
    """The optimizer, given gradients of a loss that was differentiated times ``loss_scale(state)``.

    Where one of them is infinite or NaN the step is skipped: parameters and state come back bit for bit, but for the
    scale, which halves (at least 1). After ``grow_after`` good steps in a row it doubles (at most 2^24). State: two
    numbers of [1] beside the inner optimizer's. (Micikevicius et al. 2018, Mixed precision training.)
    """

    def init(params: Arrays) -> dict[str, Array]:
        return optimizer.init(params) | {SCALE: xp.full((1,), precision.scale), GOOD: xp.zeros((1,))}

    def weighted(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        sound = finite(grads)
        good = active * xp.astype(sound, xp.float32)
        plain = {name: _where(sound, gradient) for name, gradient in grads.items()}
        own = {name: value for name, value in state.items() if name not in (SCALE, GOOD)}
        moved, kept = optimizer.step(plain, own, params, hyper, good, weight=weight)
        return moved, kept | _next_scale(state, active, good, precision)

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return weighted(grads, state, params, hyper, active, xp.ones((1,)))

    name = f"{precision.dtype} {optimizer.name}"
    return Optimizer(name=name, hyper=optimizer.hyper, init=init, update=update, weighted=weighted)


def _where(sound: Array, gradient: Array) -> Array:
    # A choice and not a product: 0 times infinity is NaN.
    condition = sound if gradient.ndim else xp.reshape(sound, ())
    return xp.where(condition, gradient, xp.zeros(()))


def _next_scale(state: Arrays, active: Array, good: Array, precision: Precision) -> dict[str, Array]:
    scale, count, bad = state[SCALE], state[GOOD] + good, active - good
    if precision.halve:
        scale = xp.maximum(scale * (1 - 0.5 * bad), 1.0)
        count = count * (1 - bad)
    if precision.grow_after is not None:
        grown = good * xp.astype(xp.greater_equal(count, float(precision.grow_after)), xp.float32)
        scale = xp.minimum(scale * (1 + grown), 2.0**24)
        count = count * (1 - grown)
    return {SCALE: scale, GOOD: count}


def compute_in(dtype: Half, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function computed in half precision: its float32 arguments (``sample_weight`` apart) are rounded, and its
    results, which the caller gets as float32, too. Gradients come back in float32 and have been half in between.
    """

    def computed(params: Arrays, batch: Mapping[str, Any]) -> Any:
        if dtype == "bfloat16":
            return rounded(fn)(params, batch)
        kept = {name: value for name, value in batch.items() if name == WEIGHT}
        inputs = {**tree.map_tree(_half, dict(batch)), **kept}
        return tree.map_tree(_single, fn(tree.map_tree(_half, dict(params)), inputs))

    return computed


def _half(leaf: Any) -> Any:
    if not is_array(leaf):
        return leaf
    array = as_array(leaf)
    return _edge(xp.astype(array, xp.float16)) if array.type.dtype == "float32" else array


def _single(array: Array) -> Array:
    return xp.astype(_edge(array), xp.float32) if array.type.dtype == "float16" else array


def _same_edge(x: Array, y: Array, dy: Array) -> Array:
    return bind("barrier", dy)


@custom_vjp(_same_edge)
def _edge(x: Array) -> Array:
    """x, at a place where numbers truly are float16, forward and backward. Without it a provider that has no float16
    kernels, and casts to float32 and back, drops both casts: nothing would be rounded and nothing would overflow.
    """
    return bind("barrier", x)
