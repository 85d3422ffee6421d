"""Matrix products. ``gemm`` is what passes make of a product with a transposition or an addend."""

from collections.abc import Sequence
from math import prod

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.row import Batched, Call, Emitter, operator, per_input, single
from coterie.errors import ShapeError


def _matmul_infer(a: Type, b: Type) -> Type:
    rules.require_float(a)
    dtype = rules.same_dtype(a, b)
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(
            "both operands must have at least 2 axes.",
            hint="Use matmul of coterie.compute.numpy, which takes vectors too.",
        )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"the inner sizes {a.shape[-1]} and {b.shape[-2]} differ.",
            hint="The second operand looks transposed: use x.mT."
            if a.shape[-1] == b.shape[-1]
            else "Columns of the first must equal rows of the second.",
        )
    batch = rules.broadcast_shapes(Type(dtype, a.shape[:-2]), Type(dtype, b.shape[:-2]))
    return Type(dtype, (*batch, a.shape[-2], b.shape[-1]))


def _matmul(a: NDArray, b: NDArray) -> NDArray:
    return np.matmul(a, b)


def _columns(x: Array) -> Array:
    """[..., m, n] as [m, ... n]: the columns of all matrices side by side."""
    last = x.ndim - 1
    moved = rules.transpose(x, (last - 1, *range(last - 1), last))
    return rules.reshape(moved, (x.shape[-2], prod(x.shape[:-2]) * x.shape[-1]))


def _rows(x: Array) -> Array:
    """[..., m, n] as [... m, n]: the rows of all matrices under one another."""
    return rules.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))


def _matmul_left(call: Call, g: Array) -> Array:
    if call.inputs[0].ndim == 2 < g.ndim:
        # One product, which sums over the matrices, instead of a gradient for each and their sum.
        return bind("matmul", _columns(g), rules.swap_last(_columns(call.inputs[1])))
    return rules.unbroadcast(bind("matmul", g, rules.swap_last(call.inputs[1])), call.inputs[0].shape)


def _matmul_right(call: Call, g: Array) -> Array:
    if call.inputs[1].ndim == 2 < g.ndim:
        return bind("matmul", rules.swap_last(_rows(call.inputs[0])), _rows(g))
    return rules.unbroadcast(bind("matmul", rules.swap_last(call.inputs[0]), g), call.inputs[1].shape)


def _matmul_batch(call: Batched) -> Array:
    """With a matrix that all examples share, one product of matrices: the rows, or the columns, of all examples stand
    together.
    """
    a, b = call.inputs
    if call.mapped == (True, False) and b.ndim == 2:
        return rules.reshape(bind("matmul", _rows(a), b), (*a.shape[:-1], b.shape[1]))
    if call.mapped == (False, True) and a.ndim == 2:
        last = b.ndim - 1
        product = rules.reshape(bind("matmul", a, _columns(b)), (a.shape[0], *b.shape[:-2], b.shape[-1]))
        return rules.transpose(product, (*range(1, last), 0, last))
    return bind("matmul", *batch.aligned(call))


def _gemm_infer(a: Type, b: Type, c: Type | None = None, *, transpose_a: bool, transpose_b: bool) -> Type:
    rules.require_rank(a, 2, "a matrix")
    rules.require_rank(b, 2, "a matrix")
    out = _matmul_infer(
        Type(a.dtype, a.shape[::-1] if transpose_a else a.shape),
        Type(b.dtype, b.shape[::-1] if transpose_b else b.shape),
    )
    if c is not None and (rules.same_dtype(a, c), rules.broadcast_shapes(c, out)) != (out.dtype, out.shape):
        raise ShapeError(f"the addend {c} does not broadcast to {out}.", hint="The addend may only grow.")
    return out


def _gemm(a: NDArray, b: NDArray, c: NDArray | None = None, *, transpose_a: bool, transpose_b: bool) -> NDArray:
    product = np.matmul(a.T if transpose_a else a, b.T if transpose_b else b)
    return product if c is None else product + c


def _product(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
    return bind("gemm", a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def _gemm_left(call: Call, g: Array) -> Array:
    flip_a, flip_b, b = call.attributes["transpose_a"], call.attributes["transpose_b"], call.inputs[1]
    return _product(b, g, flip_b, True) if flip_a else _product(g, b, False, not flip_b)


def _gemm_right(call: Call, g: Array) -> Array:
    flip_a, flip_b, a = call.attributes["transpose_a"], call.attributes["transpose_b"], call.inputs[0]
    return _product(g, a, True, flip_a) if flip_b else _product(a, g, not flip_a, False)


def _gemm_addend(call: Call, g: Array) -> Array:
    return rules.unbroadcast(g, call.inputs[2].shape)


def _gemm_batch(call: Batched) -> Array:
    flips = (call.attributes["transpose_a"], call.attributes["transpose_b"])
    operands = tuple(rules.swap_last(x) if flip else x for x, flip in zip(call.inputs, flips, strict=False))
    mapped = any(call.mapped[:2])
    plain = Batched("matmul", operands, call.mapped[:2], call.size, {}, call.graph)
    product = _matmul_batch(plain) if mapped else bind("matmul", *operands)
    if len(call.inputs) == 2:
        return product
    added = Batched("add", (product, call.inputs[2]), (mapped, call.mapped[2]), call.size, {}, call.graph)
    return batch.elementwise(added)


def _gemm_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op(
        "Gemm", *names, transA=int(node.attributes["transpose_a"]), transB=int(node.attributes["transpose_b"])
    )


ROWS = (
    single(
        name="matmul",
        infer=_matmul_infer,
        evaluate=_matmul,
        gradient=per_input(_matmul_left, _matmul_right),
        batch=_matmul_batch,
        lower=operator("MatMul"),
        facts=facts.computing(
            category="tensor",
            flops=facts.product,
            cheap=False,
            zero="any",
            nonnegative=False,
            half="begins",
            derivative=False,
        ),
    ),
    single(
        name="gemm",
        infer=_gemm_infer,
        evaluate=_gemm,
        gradient=per_input(_gemm_left, _gemm_right, _gemm_addend),
        batch=_gemm_batch,
        lower=_gemm_lower,
        facts=facts.computing(
            category="tensor",
            flops=facts.product,
            cheap=False,
            zero="any",
            nonnegative=False,
            half="begins",
            derivative=False,
        ),
    ),
)
