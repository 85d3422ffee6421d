"""Per-example clipping of gradients: the sum over examples of gradients whose norm is bounded (Abadi et al., arXiv
1607.00133), inside the training step.

The definition is a loop: the gradient of each example, scaled down to the norm C where it is longer, and their sum.
:func:`clipped_grad` computes exactly that, as one graph in which most gradients of single examples never exist: see
:mod:`coterie.compute.clipping.factors` and :mod:`coterie.compute.clipping.norms`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import frexp, inf
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import tree
from coterie.compute.array import Array, ArrayLike, as_array, bind, refuse
from coterie.compute.autodiff import value_and_grad
from coterie.compute.batching import Lane, replay_batched
from coterie.compute.clipping.bounded import bounded_indices
from coterie.compute.clipping.factors import needed, read
from coterie.compute.clipping.layout import settle
from coterie.compute.clipping.norms import clippable
from coterie.compute.clipping.units import one_unit
from coterie.compute.ir import Graph
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.subgraphs import inline_calls
from coterie.compute.passes.tune import before_gradients
from coterie.compute.primitives import rules
from coterie.compute.replay import apply, build
from coterie.compute.signature import require_function
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, Traced, is_array, trace_flat
from coterie.errors import DTypeError, InputError, ShapeError

Clip: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
"""The largest norm, of the whole gradient or of each entry of the parameters by name."""
NonFinite: TypeAlias = Literal["spread", "zero"]
"""What an example whose gradient is not finite does to the sum: makes it NaN, or adds nothing."""
_MOST_STEPS = float(1 << 30)
"""Of a total and of noise: their sum is an int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """What :func:`clipped_grad` finds.

    gradient: a tree like the parameters: the sum of the clipped gradients. losses: [B]. norms: of the gradients before
    clipping, [units], or such an array for each name of a clip by names. clipped: how many units (examples, or
    microbatches) were longer than allowed, of the losses' dtype and rank 0, or one for each name.

    Only ``gradient``, with noise, is covered by a privacy guarantee: losses, norms and counts tell of single examples.
    """

    gradient: Any
    losses: Array
    norms: Any
    clipped: Any


class ClippedGrad(Protocol):
    """What :func:`clipped_grad` returns."""

    def __call__(self, params: Any, *batch: Any, sample_weight: ArrayLike | None = None) -> Clipped:
        """params: a tree of float arrays. batch: trees of arrays [B, ...]. sample_weight: [B], ones by default."""
        ...


def clipped_grad(
    fn: Callable[..., Array], clip: Clip, *, microbatch: int = 1, nonfinite: NonFinite = "spread"
) -> ClippedGrad:
    """A function of (params, *batch, sample_weight=None) that sums the clipped gradients of the examples of a batch.

    fn(params, *batch) gives one loss per example, float[B]. It is traced on ``microbatch`` examples, so that examples
    cannot see one another: BatchNorm is refused, and random numbers such as dropout masks must come with the batch to
    differ between examples. clip: C > 0, a number or a scalar array (a runtime input); a mapping gives each entry of
    params, which then is a mapping of the same names, a norm of its own. microbatch: k consecutive examples share one
    clipped gradient, that of the sum of their weighted losses over k.

    Returns a :class:`Clipped` whose gradient is the sum over units u of min(1, C / |g_u|) g_u, where g_u is the
    gradient of sample_weight times loss. Weights act before clipping, so no weight lifts a bound; a row of weight zero
    adds nothing, as long as its loss and what comes before it are finite; all weights zero give zeros.

    Guarantees: |min(1, C / |g_u|) g_u| ≤ C up to rounding, also where parts of g_u cancel one another: norms taken from
    factors are a little too long, by what rounding and underflow may hide. With a clip by names each part is within its
    C, the whole within the root of the sum of their squares. Hence with microbatch 1 the sum changes by at most C when
    an example is added or removed, by at most 2 C when one is replaced; with larger microbatches by at most 2 C in both
    cases. Equal to the loop over examples up to rounding; further gradients may be taken of it.

    All of this holds for finite numbers. With nonfinite="spread", an example with an infinite or undefined gradient
    makes the sum NaN, and one whose squared norm overflows (norms beyond 1e19 in float32) adds nothing, or NaN. With
    "zero" every such example counts as a gradient of zeros, before clipping, and the bounds hold for any numbers in the
    batch: what differential privacy needs, since one row must not decide what becomes of the others. For the same
    reason an index that is data and leaves its axis, which is refused otherwise, is then taken for the nearest inside.
    It costs a pass over what flowed forward and back. Parameters are taken to be finite in either case.

    Raises InputError for a clip that is not above 0, for names that do not match and for a batch that microbatches do
    not divide; ShapeError for arrays of different numbers of examples and for a result of fn that is not [B];
    DTypeError for parameters that are not floats.
    """
    require_function("clipped_grad", fn)
    _check_clip(clip)
    if nonfinite not in get_args(NonFinite):
        raise InputError(f"{user_source()}: clipped_grad: nonfinite is 'spread' or 'zero', not {nonfinite!r}.")

    def clipped(params: Any, *batch: Any, sample_weight: ArrayLike | None = None) -> Clipped:
        leaves, structure = tree.flatten(params)
        arrays = [as_array(leaf) for leaf in leaves]
        rows, batch_structure = tree.flatten(tuple(batch))
        size = _batch_size(rows, list(batch_structure.paths()), microbatch)
        units = size // microbatch
        weight = _weights(sample_weight, size, arrays)
        names, limits = _limits(clip, params, arrays)
        unit = _trace_unit(fn, tree.unflatten(structure, arrays), rows, batch_structure, weight, microbatch)
        members = _members(structure, names)
        examples = [weight, *(as_array(row) for row in rows if is_array(row))]
        inputs = [*arrays, *examples, *unit.captures, *limits]

        def body(given: list[Array]) -> list[Array]:
            first, last = len(arrays), len(arrays) + len(examples)
            grouped = [rules.reshape(row, (units, microbatch, *row.shape[1:])) for row in given[first:last]]
            lanes = [Lane(array, False) for array in given[:first]] + [Lane(array, True) for array in grouped]
            lanes += [Lane(array, False) for array in given[last : -len(limits)]]
            return _clip(unit, lanes, units, len(arrays), members, given[-len(limits) :], nonfinite)

        graph = settle(build([array.type for array in inputs], body))
        results = apply(graph, inputs)
        gradient = tree.unflatten(structure, results[1 : 1 + len(arrays)])
        norms, counts = results[1 + len(arrays) :: 2], results[2 + len(arrays) :: 2]
        return Clipped(
            gradient=gradient,
            losses=results[0],
            norms=dict(zip(names, norms, strict=True)) if names else norms[0],
            clipped=dict(zip(names, counts, strict=True)) if names else counts[0],
        )

    return clipped


def noised_mean(total: Any, noise: Any, *, grid: ArrayLike, count: ArrayLike) -> Any:
    """(total + grid * noise) / count, for trees of equal structure: the private gradient.

    total is moved down to the multiples of the grid first, and added to the noise in whole numbers: a sum of floats
    would tell by its low bits what was added to what (Mironov 2012). Here which sums are possible does not depend on
    total.

    noise: int32, whole numbers within ±2**30 that the host draws from a cryptographic generator anew for every step,
    shaped like the gradient. grid: what one of them stands for, a power of two; it is to be so wide that no element of
    total is beyond 2**30 steps, where it is cut off. Moving changes each element by less than a step, so two totals C
    apart may be C + grid * sqrt(elements) apart afterwards, and the noise must be made for that. count: the public
    expected number of examples, not the number in this batch, which is private. Both are numbers or scalar arrays. The
    noise is added whatever the batch holds, also for a batch of zero weight. total must be finite. Raises InputError
    for trees that differ, ShapeError for noise of another shape, DTypeError for noise that is not int32.
    """
    step_of, examples = _known(grid), _known(count)
    if not (step_of is None or (0 < step_of < inf and frexp(step_of)[0] == 0.5)):
        raise InputError(
            f"{user_source()}: noised_mean: the grid {step_of} must be a power of two.",
            hint="grid is what one whole number of noise stands for: about 2**-22 of the noise's deviation.",
        )
    if not (examples is None or 0 < examples < inf):
        raise InputError(
            f"{user_source()}: noised_mean: the count {examples} must be above 0.",
            hint="count is the expected number of examples.",
        )

    def each(gradient: Any, drawn: Any) -> Array:
        summed, whole = as_array(gradient), as_array(drawn)
        if summed.shape != whole.shape:
            refuse(ShapeError, "noised_mean", (summed, whole), "the noise is not shaped like the gradient.")
        if whole.type.dtype != "int32":
            refuse(DTypeError, "noised_mean", (whole,), "the noise is no int32.", "Draw whole numbers.")
        dtype = summed.type.dtype
        step = rules.cast(rules.reshape(_scalar(grid), ()), dtype)
        steps = xp.clip(xp.floor(summed / step), -_MOST_STEPS, _MOST_STEPS)
        noised = rules.cast(rules.cast(steps, "int32") + whole, dtype)
        return noised * (step / rules.cast(rules.reshape(_scalar(count), ()), dtype))

    return tree.map_tree(each, total, noise)


def _clip(
    unit: Traced,
    lanes: list[Lane],
    units: int,
    parameters: int,
    members: list[list[int]],
    limits: list[Array],
    nonfinite: NonFinite,
) -> list[Array]:
    """Losses, gradients, then for each limit norms and the number of units beyond it."""
    graph = remove_dead_code(inline_calls(unit.graph))
    graph = graph if nonfinite == "spread" else bounded_indices(graph)
    losses, *gradients = graph.outputs.values()
    forms = read(graph, gradients)
    wanted = [losses, *(value for form in forms for value in needed(form))]
    reached = remove_dead_code(Graph(graph.inputs, graph.nodes, {str(i): value for i, value in enumerate(wanted)}))
    values = replay_batched(reached, lanes, units)
    parts = [clippable(form, values, units) for form in forms]
    totals: list[Array | None] = [None] * parameters
    rest: list[Array] = []
    groups = [[parts[place].squares() for place in places] for places in members]
    # Whatever is not finite anywhere in a gradient makes its squared norm not finite.
    kept = None if nonfinite == "spread" else xp.isfinite(_added([_added(each) for each in groups]))
    for places, limit, each in zip(members, limits, groups, strict=True):
        squares = _added(each)
        if kept is not None:
            squares = bind("where", kept, squares, rules.number(0, squares))
        bound = rules.cast(rules.reshape(limit, (1,)), squares.type.dtype)
        # A norm that is never 0, so that it has a gradient; too long where its square underflows.
        norms = xp.sqrt(xp.maximum(squares, float(np.finfo(squares.dtype).tiny)))
        scales = bound / xp.maximum(norms, bound)
        for place, part in zip(places, each, strict=True):
            total = parts[place].total(rules.cast(scales, part.type.dtype), kept)
            totals[place] = rules.cast(total, gradients[place].type.dtype)
        rest += [
            xp.sqrt(xp.maximum(squares, 0.0)),
            rules.sum_over(rules.greater_mask(norms, bound, squares.type.dtype), (0,)),
        ]
    lane = values[losses]
    found = lane.array if lane.mapped else rules.broadcast_to(lane.array, (units, *lane.array.shape))
    return [rules.reshape(found, (found.size,)), *cast("list[Array]", totals), *rest]


def _added(squares: list[Array]) -> Array:
    total = squares[0]
    for more in squares[1:]:
        total = total + more
    return total


def _trace_unit(
    fn: Callable[..., Array], params: Any, rows: list[Any], structure: tree.Structure, weight: Array, size: int
) -> Traced:
    """The losses and the gradient of one unit, as a graph of (params, weights, *batch)."""

    def specimen(row: Any) -> Any:
        if not is_array(row):
            return row
        array = as_array(row)
        return TensorSpec((size, *array.shape[1:]), array.type.dtype)

    def of_unit(params: Any, weights: Array, *batch: Any) -> tuple[Array, Any]:
        def objective(trained: Any) -> tuple[Array, Array]:
            result: Any = fn(trained, *batch)
            losses = result if isinstance(result, Array) else xp.zeros(())
            if losses.shape != (size,) or not losses.type.is_float:
                reason = f"fn must give one float for each of {size} examples, [{size}]."
                refuse(ShapeError, "clipped_grad", (losses,), reason, "Leave the reduction over examples to this.")
            total = xp.sum(losses * rules.cast(weights, losses.type.dtype))
            return (total if size == 1 else total / float(size)), losses

        (_, losses), gradients = value_and_grad(objective, has_aux=True, before=before_gradients("portable"))(params)
        return losses, gradients

    batch = tree.unflatten(structure, [specimen(row) for row in rows])
    with one_unit():
        return trace_flat(of_unit, (params, TensorSpec((size,), weight.type.dtype), *batch), ())


def _batch_size(rows: list[Any], paths: list[str], microbatch: int) -> int:
    sizes: dict[str, int] = {}
    for row, path in zip(rows, paths, strict=True):
        if not is_array(row):
            continue
        array = as_array(row)
        if array.ndim == 0:
            refuse(
                ShapeError, "clipped_grad", (array,), f"batch argument {path} has no axis of examples.", "Give it [B]."
            )
        sizes[path] = array.shape[0]
    if len(set(sizes.values())) != 1:
        told = ", ".join(f"argument {path}: {size}" for path, size in sizes.items()) or "there are none"
        raise ShapeError(
            f"{user_source()}: the arrays of the batch do not hold one number of examples ({told}).",
            hint="Pass the arrays that all examples share by closure.",
        )
    size = next(iter(sizes.values()))
    whole = isinstance(cast("object", microbatch), int) and not isinstance(cast("object", microbatch), bool)
    if not whole or microbatch < 1 or size % microbatch or not size:
        raise InputError(
            f"{user_source()}: {size} examples do not make microbatches of {microbatch!r}.",
            hint="microbatch is at least 1 and divides the batch; pad the batch with rows of weight zero.",
        )
    return size


def _weights(sample_weight: ArrayLike | None, size: int, params: list[Array]) -> Array:
    if sample_weight is None:
        dtype = params[0].type.dtype if params else "float32"
        return xp.ones((size,), dtype=dtype)
    weight = as_array(sample_weight)
    if weight.shape != (size,):
        refuse(ShapeError, "clipped_grad", (weight,), f"sample_weight must be [{size}].", "One number per example.")
    if not weight.type.is_float:
        refuse(DTypeError, "clipped_grad", (weight,), "sample_weight must be a float.", "Convert it with astype.")
    return weight


def _check_clip(clip: Clip) -> None:
    named = clip if isinstance(clip, Mapping) else {"clip": clip}
    for name, value in named.items():
        number = _known(value)
        if number is not None and not 0 < number < inf:
            raise InputError(
                f"{user_source()}: {name} is {number}: a norm to clip to is above 0 and finite.",
                hint="Give the largest norm that the gradient of one example may have.",
            )


def _known(x: ArrayLike) -> float | None:
    """The value of a number that is no symbol of a trace."""
    array = _scalar(x)
    return None if array.recorder is not None else float(array.numpy().reshape(()))


def _limits(clip: Clip, params: Any, arrays: list[Array]) -> tuple[list[str], list[Array]]:
    """The names of a clip by names (none otherwise), and the limits as scalar arrays."""
    if not arrays:
        raise InputError(f"{user_source()}: clipped_grad was given no parameters.")
    if not isinstance(clip, Mapping):
        return [], [_scalar(clip)]
    names = sorted(cast("Mapping[str, Any]", params)) if isinstance(params, Mapping) else []
    if names != sorted(clip):
        raise InputError(
            f"{user_source()}: the clip names {sorted(clip)}, the parameters {names or 'nothing'}.",
            hint="Give one norm for each entry of a mapping of parameters, or one number for all.",
        )
    return names, [_scalar(clip[name]) for name in names]


def _members(structure: tree.Structure, names: list[str]) -> list[list[int]]:
    """For each limit the places of the parameters that share it."""
    if not names:
        return [list(range(structure.leaves))]
    counts = [child.leaves for child in structure.children]
    return [list(range(sum(counts[:i]), sum(counts[: i + 1]))) for i in range(len(counts))]


def _scalar(x: ArrayLike) -> Array:
    array = as_array(float(x)) if isinstance(x, (int, float)) else as_array(x)
    if array.size != 1:
        refuse(ShapeError, "clipped_grad", (array,), "a norm or scale is one number.", "Pass a scalar or an array [1].")
    return array
