"""Resize: every axis by itself, nearest elements as positions, the others as a product with a constant matrix."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.importer.operation import Operation, Rule


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: elements before and after, and how many there are after for one before."""

    before: int
    after: int
    scale: float

    @property
    def places(self) -> NDArray:
        """0 … after - 1, in the precision in which ONNX Runtime reckons: at ties the nearest depends on it."""
        return np.arange(self.after, dtype=np.float32)


def _half_pixel(axis: _Axis) -> NDArray:
    return (axis.places + 0.5) / axis.scale - 0.5


def _symmetric(axis: _Axis) -> NDArray:
    share = axis.after / (axis.scale * axis.before)
    return axis.before / 2 * (1 - share) + _half_pixel(axis)


_MOST_SHARES = 2**24  # from 4096 elements to as many
# Where the centre of each element lies among those before. What one element is made of is a choice of its own.
_PLACES: Mapping[str, Callable[[_Axis], NDArray]] = {
    "align_corners": lambda axis: axis.places * (axis.before - 1) / max(axis.after - 1, 1),
    "asymmetric": lambda axis: axis.places / axis.scale,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda axis: _half_pixel(axis) if axis.after > 1 else 0.0 * axis.places,
}
_NEAREST: Mapping[str, Callable[[NDArray], NDArray]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
}


def _linear(distance: NDArray) -> NDArray:
    return np.maximum(1 - np.abs(distance), 0)


def _cubic(a: float) -> Callable[[NDArray], NDArray]:
    """The kernel of Keys, IEEE Transactions on Acoustics, Speech, and Signal Processing 29 (1981)."""

    def weight(distance: NDArray) -> NDArray:
        t = np.abs(distance)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((t - 5) * t + 8) * t * a - 4 * a
        return np.where(t <= 1, near, np.where(t < 2, far, 0.0))

    return weight


def _resize(node: Operation) -> Array:
    x, mode = node[0], node.option("mode", "nearest")
    how = node.option("coordinate_transformation_mode", "half_pixel")
    rounding = node.option("nearest_mode", "round_prefer_floor")
    if mode not in ("nearest", "linear", "cubic") or how not in _PLACES or rounding not in _NEAREST:
        node.refuse(f"it resizes by {mode!r}, {how!r}, {rounding!r}", "Export with bilinear or nearest interpolation.")
    if node.option("antialias", 0) or node.option("keep_aspect_ratio_policy", "stretch") != "stretch":
        node.refuse("it smooths or keeps the aspect ratio", "Export without antialias, to a given size.")
    kernel = _linear if mode == "linear" else _cubic(node.option("cubic_coeff_a", -0.75))
    for place, axis in _axes(node).items():
        if axis.before == axis.after and axis.scale == 1:
            continue
        node.held(axis.after)
        centres = _PLACES[how](axis)
        if mode == "nearest":
            nearest = np.clip(_NEAREST[rounding](centres), 0, axis.before - 1)
            x = cnp.take(x, Array(nearest.astype(np.int32)), axis=place)
            continue
        if axis.after * axis.before > _MOST_SHARES:
            node.refuse(f"it makes {axis.after} elements of {axis.before}", "Export smaller sizes.")
        matrix = _matrix(axis, centres, 1 if mode == "linear" else 2, kernel, bool(node.option("exclude_outside", 0)))
        factor = Array(matrix.astype(x.dtype.name))
        x = cnp.moveaxis(cnp.moveaxis(x, place, -1) @ cnp.matrix_transpose(factor), -1, place)
    return x


def _axes(node: Operation) -> dict[int, _Axis]:
    """What is known of each axis. Raises GraphRefused for a size that is not positive."""
    x = node[0]
    places = [int(n) % max(x.ndim, 1) for n in node.option("axes", range(x.ndim))]
    given = node.get(3) is not None
    numbers = node.known(3 if given else 2).reshape(-1)
    sizes = [x.shape[place] for place in places]
    after = numbers.tolist() if given else np.floor(np.asarray(sizes, np.float32) * numbers).tolist()
    if len(numbers) != len(places) or min(sizes, default=1) < 1 or min(after, default=1) < 1:
        node.refuse(f"the sizes {list(x.shape)} cannot become {after}", "The file is damaged: export it again.")
    scales = [n / size for n, size in zip(after, sizes, strict=True)] if given else numbers.tolist()
    return {
        place: _Axis(size, int(n), float(scale))
        for place, size, n, scale in zip(places, sizes, after, scales, strict=True)
    }


def _matrix(
    axis: _Axis, centres: NDArray, reach: int, kernel: Callable[[NDArray], NDArray], inside_only: bool
) -> NDArray:
    """The shares [after, before] of elements before in each one after. Beyond the ends stand copies of the last
    elements; inside_only: nothing, and what is inside counts the more.
    """
    matrix, rows = np.zeros((axis.after, axis.before)), np.arange(axis.after)
    first = np.floor(centres).astype(np.int64)
    for step in range(1 - reach, reach + 1):
        at = first + step
        share = kernel(centres - at)
        share = np.where((at >= 0) & (at < axis.before), share, 0.0) if inside_only else share
        np.add.at(matrix, (rows, np.clip(at, 0, axis.before - 1)), share)
    return matrix / matrix.sum(axis=1, keepdims=True) if inside_only else matrix


RULES: dict[str, Rule] = {"Resize": _resize}
