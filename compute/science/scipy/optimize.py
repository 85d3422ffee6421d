"""``scipy.optimize.minimize`` with gradients of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.compute.array import Array, as_array
from coterie.compute.ir import NDArray
from coterie.compute.science.lbfgs import minimise
from coterie.errors import ArgumentValueError


@dataclass(frozen=True, kw_only=True)
class OptimizeResult:
    """What SciPy's result of that name tells. jac: the largest absolute component of the gradient at ``x``."""

    x: NDArray
    fun: float
    jac: float
    nit: int
    nfev: int
    success: bool
    message: str


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    method: str = "L-BFGS-B",
    *,
    tol: float = 1e-6,
    options: Mapping[str, int] | None = None,
) -> OptimizeResult:
    """A local minimum of ``fun(x, *args)``, compiled once, by :func:`coterie.compute.science.lbfgs.minimise`.

    method: "L-BFGS-B", without bounds. tol: of the gradient's largest component. options: maxiter and maxcor (the
    changes that are remembered). Raises ArgumentValueError for another method or option.
    """
    given = dict(options or {})
    if method.upper() not in ("L-BFGS-B", "L-BFGS"):
        raise ArgumentValueError(f"minimize: there is no method {method!r} here.", hint='Use "L-BFGS-B".')
    if unknown := set(given) - {"maxiter", "maxcor"}:
        raise ArgumentValueError(f"minimize: there are no options {sorted(unknown)}.", hint="Use maxiter and maxcor.")

    def objective(x: Array) -> Any:
        return fun(x, *args)

    start = as_array(x0)
    found = minimise(
        objective, start, memory=given.get("maxcor", 10), max_iterations=given.get("maxiter", 200), tolerance=tol
    )
    return OptimizeResult(
        x=as_array(found.x).numpy(),
        fun=found.value,
        jac=found.gradient,
        nit=found.iterations,
        nfev=found.evaluations,
        success=found.converged,
        message="The gradient is within the tolerance." if found.converged else "The tolerance was not reached.",
    )
