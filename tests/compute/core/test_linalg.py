"""Factorisations are NumPy's, with gradients that are true, over leading axes, and refused where ONNX has none."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.compute import TensorSpec, grad, jit, linalg, to_onnx, trace, vmap
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.extension.laws import check_primitive
from coterie.compute.ir import NDArray
from coterie.compute.linalg import rows
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.module import Module, ParameterSpec
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.compute.science.scipy import linalg as scipy_linalg
from coterie.errors import ArgumentValueError, CoterieError, DTypeError, ShapeError, TraceError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

RNG = np.random.default_rng(23)


def general(*shape: int) -> NDArray:
    """Far from singular, and with singular values apart."""
    return RNG.normal(size=shape) + 2.0 * np.eye(shape[-2], shape[-1])


def positive(*shape: int) -> NDArray:
    matrix = general(*shape)
    return matrix @ matrix.swapaxes(-1, -2) + np.diag(np.arange(shape[-1]))


def symmetric(*shape: int) -> NDArray:
    matrix = RNG.normal(size=shape)
    return matrix + matrix.swapaxes(-1, -2) + np.diag(3.0 * np.arange(shape[-1]))


# name → operands for the laws of a primitive, as many different shapes as there are branches
LAWS: dict[str, list[tuple[NDArray, ...]]] = {
    "inv": [(general(3, 3),), (general(2, 1, 1),), (general(2, 3, 3),)],
    "solve": [(general(3, 3), RNG.normal(size=(3, 2))), (general(2, 3, 3), RNG.normal(size=(2, 3, 1)))],
    "cofactor": [(general(3, 3),), (general(2, 1, 1),), (general(2, 4, 4),)],
    "det": [(general(3, 3),), (general(1, 1),), (general(2, 3, 3),)],
    "slogdet": [(general(3, 3),), (-general(1, 1),), (general(2, 3, 3),)],
    "svd": [(general(3, 3),), (general(4, 2),), (general(2, 4),), (general(2, 3, 2),)],
    "qr": [(general(3, 3),), (general(4, 2),), (general(2, 4),), (general(2, 3, 5),)],
}


@pytest.mark.capability("D8")
@pytest.mark.parametrize("name", LAWS)
def test_a_factorisation_keeps_the_laws_of_primitives(name: str) -> None:
    """Kernel and types, mapping over examples, and gradients by finite differences to second order."""
    for operands in LAWS[name]:
        check_primitive(getattr(rows, name), *operands)


def test_every_factorisation_is_tried() -> None:
    assert {row.name for row in rows.ROWS} == {f"linalg.{name}" for name in (*LAWS, "cholesky", "eigh")}


def spun(values: Array) -> Array:
    """Something that every element of a matrix plays a part in."""
    return cnp.sum(cnp.sin(values) * cnp.asarray(np.arange(1.0, values.size + 1).reshape(values.shape)))


@dataclass(frozen=True)
class Case:
    """A function of matrices, what NumPy gives for the same, and operands; made: the operand from free numbers."""

    function: Callable[..., Any]
    numpy: Callable[..., Any]
    operands: tuple[NDArray, ...]
    made: Callable[[Any], Any] = lambda x: x


def _symmetrised(x: Any) -> Any:
    return x + cnp.matrix_transpose(x)


CASES: dict[str, Case] = {
    "inv": Case(linalg.inv, np.linalg.inv, (general(4, 4),)),
    "det": Case(linalg.det, np.linalg.det, (general(2, 3, 3),)),
    "slogdet": Case(lambda x: linalg.slogdet(x).logabsdet, lambda x: np.linalg.slogdet(x)[1], (-general(3, 3),)),
    "solve a vector": Case(linalg.solve, np.linalg.solve, (general(3, 3), RNG.normal(size=3))),
    "solve, broadcast": Case(linalg.solve, np.linalg.solve, (general(3, 3), RNG.normal(size=(2, 3, 2)))),
    "cholesky": Case(linalg.cholesky, np.linalg.cholesky, (positive(4, 4),), lambda x: 0.5 * _symmetrised(x)),
    "cholesky, upper": Case(
        lambda x: linalg.cholesky(x, upper=True),
        lambda x: np.linalg.cholesky(x).swapaxes(-1, -2),
        (positive(2, 3, 3),),
        lambda x: 0.5 * _symmetrised(x),
    ),
    "eigenvalues": Case(linalg.eigvalsh, np.linalg.eigvalsh, (symmetric(4, 4),), lambda x: 0.5 * _symmetrised(x)),
    # Vectors up to their sign: the squares of their elements.
    "eigenvectors": Case(
        lambda x: linalg.eigh(x).eigenvectors ** 2,
        lambda x: np.linalg.eigh(x)[1] ** 2,
        (symmetric(2, 3, 3),),
        lambda x: 0.5 * _symmetrised(x),
    ),
    "singular values": Case(linalg.svdvals, lambda x: np.linalg.svd(x)[1], (general(4, 3),)),
    "U": Case(
        lambda x: linalg.svd(x).U ** 2, lambda x: np.linalg.svd(x, full_matrices=False)[0] ** 2, (general(4, 3),)
    ),
    "Vh": Case(
        lambda x: linalg.svd(x).Vh ** 2, lambda x: np.linalg.svd(x, full_matrices=False)[2] ** 2, (general(2, 3, 4),)
    ),
    "Q": Case(lambda x: linalg.qr(x).Q, lambda x: np.linalg.qr(x)[0], (general(4, 3),)),
    "R": Case(lambda x: linalg.qr(x).R, lambda x: np.linalg.qr(x)[1], (general(3, 5),)),
    "pinv": Case(linalg.pinv, np.linalg.pinv, (general(2, 4, 3),)),
    "scipy's cholesky": Case(
        scipy_linalg.cholesky,
        lambda x: np.linalg.cholesky(x).swapaxes(-1, -2),
        (positive(3, 3),),
        lambda x: 0.5 * _symmetrised(x),
    ),
}


@pytest.mark.capability("A13")
@pytest.mark.parametrize("name", CASES)
def test_a_factorisation_has_a_true_gradient(name: str) -> None:
    """The value is NumPy's; the gradient along random directions is the finite difference."""
    case = CASES[name]
    found = case.function(*map(Array, case.operands)).numpy()
    np.testing.assert_allclose(found, case.numpy(*case.operands), rtol=1e-9, atol=1e-11)
    single = [operand.astype(np.float32) for operand in case.operands]
    assert case.function(*map(Array, single)).dtype == np.float32

    def value(*operands: Array) -> Array:
        return spun(case.function(case.made(operands[0]), *operands[1:]))

    told = grad(value, tuple(range(len(case.operands))))(*map(Array, case.operands))
    for _ in range(3):
        directions = [RNG.normal(size=operand.shape) for operand in case.operands]
        ends = [
            value(*(Array(x + side * 1e-6 * d) for x, d in zip(case.operands, directions, strict=True))).item()
            for side in (1, -1)
        ]
        along = sum(float(np.sum(g.numpy() * d)) for g, d in zip(told, directions, strict=True))
        assert along == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=2e-5, abs=1e-6)


@pytest.mark.capability("A13")
def test_gradients_are_the_known_ones() -> None:
    """By textbook: d log|det A| = A⁻ᵀ, d det A = its cofactors, d tr(A⁻¹) = -A⁻ᵀ², d λ = v vᵀ, d s = u vᵀ."""
    x, s, p = general(3, 3), symmetric(3, 3), positive(3, 3)
    inverse = np.linalg.inv(x)
    vectors = np.linalg.eigh(s)[1]
    u, _, vh = np.linalg.svd(x)
    known: list[tuple[Callable[[Array], Array], NDArray, NDArray]] = [
        (lambda a: linalg.slogdet(a).logabsdet, x, inverse.T),
        (linalg.det, x, np.linalg.det(x) * inverse.T),
        (lambda a: cnp.sum(linalg.inv(a) * np.eye(3)), x, -(inverse @ inverse).T),
        (lambda a: linalg.eigvalsh(a)[0], s, np.outer(vectors[:, 0], vectors[:, 0])),
        (lambda a: linalg.svdvals(a)[1], x, np.outer(u[:, 1], vh[1])),
        (lambda a: linalg.solve(a, cnp.ones(3, dtype="float64"))[0], x, -np.outer(inverse[0], inverse.sum(1))),
        # Half of log det, by the diagonal of the factor.
        (lambda a: cnp.sum(cnp.log(cnp.sum(linalg.cholesky(a) * np.eye(3), axis=0))), p, 0.5 * np.linalg.inv(p)),
    ]
    for function, operand, wanted in known:
        np.testing.assert_allclose(grad(function)(Array(operand)).numpy(), wanted, rtol=1e-9, atol=1e-11)
    # A singular matrix has a gradient of its determinant all the same: here only the corner counts.
    flat = np.diag([2.0, 3.0, 0.0])
    np.testing.assert_allclose(grad(linalg.det)(Array(flat)).numpy(), np.diag([0.0, 0.0, 6.0]), atol=1e-12)


def test_matrices_are_mapped_and_compiled_functions_say_what_runs_on_the_host() -> None:
    stack = general(5, 3, 3)
    each = vmap(grad(lambda a: linalg.slogdet(a).logabsdet))(Array(stack)).numpy()
    np.testing.assert_allclose(each, np.linalg.inv(stack).swapaxes(-1, -2), rtol=1e-9)
    shared = vmap(linalg.solve, (None, 0))(Array(stack[0]), Array(stack[:, :, 0])).numpy()
    np.testing.assert_allclose(shared, np.linalg.solve(stack[0], stack[:, :, 0].T).T, rtol=1e-9, atol=1e-12)
    compiled = jit(lambda a: linalg.inv(a) @ a)
    np.testing.assert_allclose(compiled(stack[0].astype(np.float32)).numpy(), np.eye(3), atol=1e-5)
    assert (compiled.compilations, compiled.fallbacks) == (1, ())
    assert len(compiled.host_calls) == 1 and "'linalg.inv'" in compiled.host_calls[0]


def test_an_export_refuses_a_factorisation_and_says_what_to_do() -> None:
    graph = trace(linalg.inv, TensorSpec((3, 3))).graph
    with pytest.raises(TraceError, match=r"test_linalg\.py:\d+: primitive 'linalg\.inv' has no lowering") as caught:
        to_onnx(graph, name="inverse")
    assert caught.value.reason == "lowering_missing" and "on the host" in str(caught.value.hint)


class Whitened(Module):
    """A model that solves for its rows."""

    def specs(self) -> dict[str, ParameterSpec]:
        return mlp((4, 3)).specs()

    def __call__(self, params: Any, x: Any, mode: Any = None) -> Any:
        spread = cnp.matrix_transpose(x) @ x + cnp.eye(4)
        return mlp((4, 3))(params, x @ linalg.inv(spread))


@pytest.mark.capability("D8")
def test_a_plan_refuses_a_factorisation_by_name() -> None:
    schema = DataSchema((Feature(name="x", shape=(4,), low=-9, high=9),), Label(name="y", low=0, high=2))
    wanted = Experiment(
        name="whitened",
        model=Whitened(),
        schema=schema,
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        rounds=RoundPolicy(rounds=1, cohort=1),
    )
    with pytest.raises(CoterieError, match=r"test_linalg\.py:\d+.*'linalg\.inv'") as caught:
        compile_plan(wanted)
    assert "ONNX has no factorisations" in str(caught.value.hint)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_a_zero_singular_value_of_a_matrix_that_is_not_square_has_a_finite_gradient(shape: tuple[int, int]) -> None:
    x = np.zeros(shape)
    x[0, 0] = 2.0

    def largest(matrix: Array) -> Array:
        return cnp.sum(linalg.svd(matrix, full_matrices=False).S ** 2)

    # The sum of the squares of the singular values is that of the elements.
    np.testing.assert_allclose(grad(largest)(Array(x)).numpy(), 2 * x, atol=1e-12)
    assert np.isfinite(grad(lambda matrix: cnp.sum(linalg.pinv(matrix)))(Array(x)).numpy()).all()


REFUSED: list[tuple[Callable[[], Any], type[CoterieError], str]] = [
    (lambda: linalg.inv(np.zeros((3, 3))), ArgumentValueError, "inv: the matrix is singular"),
    (lambda: linalg.solve(np.zeros((2, 2)), np.ones(2)), ArgumentValueError, "solve: the matrix is singular"),
    (lambda: linalg.cholesky(-np.eye(2)), ArgumentValueError, "cholesky: the matrix is not positive definite"),
    (lambda: linalg.svd(np.full((2, 2), np.nan)), ArgumentValueError, "did not converge"),
    (lambda: linalg.det(np.ones((2, 3))), ShapeError, r"square matrices \[..., N, N\], got \[2, 3\]"),
    (lambda: linalg.svd(np.ones(3)), ShapeError, r"it takes matrices \[..., M, N\], got \[3\]"),
    (lambda: linalg.inv(np.eye(2, dtype=np.int32)), DTypeError, "float32 or float64, got int32"),
    (lambda: linalg.solve(np.eye(2), np.ones(3)), ShapeError, r"got \[2, 2\] and \[3\]"),
    (lambda: linalg.solve(np.ones((2, 3, 3)), np.ones((4, 3, 1))), ShapeError, r"got \[2, 3, 3\] and \[4, 3, 1\]"),
    (lambda: linalg.solve(np.eye(3), np.float64(1.0)), ShapeError, r"got \[3, 3\] and \[\]"),
    (lambda: linalg.svd(np.eye(2), full_matrices=True), ArgumentValueError, "the full matrices are not here"),
    (lambda: linalg.qr(np.eye(2), mode="complete"), ArgumentValueError, "the mode 'complete' is not here"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_has_no_answer_is_refused(number: int) -> None:
    call, kind, told = REFUSED[number]
    with pytest.raises(kind, match=told) as caught:
        call()
    assert caught.value.hint
