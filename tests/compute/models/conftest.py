"""What the tests of layers, losses and optimizers share."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.ir import NDArray

Scalar = Callable[[dict[str, Array]], Array]


@pytest.fixture
def check_gradients() -> Callable[[Scalar, Mapping[str, NDArray]], None]:
    """Compare a scalar function's first and second derivatives along random directions with central differences, in
    float64.
    """

    def along(
        fn: Scalar, point: Mapping[str, NDArray], way: Mapping[str, NDArray], distance: float
    ) -> dict[str, Array]:
        return {name: Array(np.asarray(value + distance * way[name])) for name, value in point.items()}

    def slope(fn: Scalar, arrays: dict[str, Array], way: Mapping[str, NDArray]) -> float:
        gradient: dict[str, Array] = grad(fn)(arrays)
        return sum(float(np.vdot(gradient[name].numpy(), way[name])) for name in arrays)

    def check(fn: Scalar, point: Mapping[str, NDArray]) -> None:
        rng = np.random.default_rng(11)
        step = 1e-5
        for _ in range(3):
            way: dict[str, NDArray] = {name: rng.normal(size=value.shape) for name, value in point.items()}
            ahead, behind = along(fn, point, way, step), along(fn, point, way, -step)
            first = (fn(ahead).item() - fn(behind).item()) / (2 * step)
            assert slope(fn, along(fn, point, way, 0), way) == pytest.approx(first, rel=1e-6, abs=1e-7)
            second = (slope(fn, ahead, way) - slope(fn, behind, way)) / (2 * step)

            def inner(arrays: dict[str, Array], way: Mapping[str, NDArray] = way) -> Array:
                gradient: dict[str, Array] = grad(fn)(arrays)
                total = Array(np.zeros(()))
                for name in arrays:
                    total = total + (gradient[name] * Array(way[name])).sum()
                return total

            assert slope(inner, along(fn, point, way, 0), way) == pytest.approx(second, rel=1e-5, abs=1e-5)

    return check
