"""How far each axis of an operator runs, from the shapes of its operands."""

from collections.abc import Iterable, Mapping, Sequence

from coterie.compute.science.dsl.expression import Access, Axis, Index, Tensor


def solve(
    accesses: Sequence[Access], shapes: Mapping[Tensor, tuple[int, ...]], given: Mapping[Axis, int]
) -> dict[Axis, int] | str:
    """The size of every axis, or why there is none.

    An axis that stands alone in an index runs over the whole axis of the tensor, unless its size is given. Of axes in a
    sum, one that is known nowhere else runs as far as the tensor reaches: in A[i + k] with k known, i has
    shape - k + 1 positions.
    """
    sizes = dict(given)
    for access in accesses:
        shape = shapes[access.tensor]
        if len(shape) != len(access.indices):
            return f"{access} has {len(access.indices)} indices, and {access.tensor.name} has the shape {list(shape)}"
        for index, extent in zip(access.indices, shape, strict=True):
            axis = index.alone
            if axis is not None and axis not in given and sizes.setdefault(axis, extent) != extent:
                return f"the axis {axis} is {extent} in {access} and {sizes[axis]} elsewhere"
    used = [(access, index, at) for access in accesses for at, index in enumerate(access.indices)]
    unknown = list(dict.fromkeys(axis for _, index, _ in used for axis, _ in index.terms if axis not in sizes))
    while unknown:
        found = {axis: size for axis in unknown if (size := _reach(axis, used, shapes, sizes)) is not None}
        if not found:
            return f"nothing says how far the axis {unknown[0]} runs (give sizes={{{unknown[0]}: ...}})"
        axis = next(iter(found))
        sizes[axis] = found[axis]
        unknown.remove(axis)
    if empty := [axis.name for axis, size in sizes.items() if size < 1]:
        return f"the axis {empty[0]} has no position"
    for access, index, at in used:
        low, high = _range(index, sizes)
        if low < 0 or high >= shapes[access.tensor][at]:
            return (
                f"{access} reaches from {low} to {high} along axis {at} of {access.tensor.name}, "
                f"which has {shapes[access.tensor][at]}"
            )
    return sizes


def _reach(
    axis: Axis,
    used: Iterable[tuple[Access, Index, int]],
    shapes: Mapping[Tensor, tuple[int, ...]],
    sizes: Mapping[Axis, int],
) -> int | None:
    """The positions of an axis within every index of which it is the only unknown with a positive factor."""
    reaches: list[int] = []
    for access, index, at in used:
        factors = dict(index.terms)
        others = [(other, factor) for other, factor in index.terms if other != axis]
        if factors.get(axis, 0) <= 0 or any(other not in sizes for other, _ in others):
            continue
        _, high = _range(Index(tuple(others), index.offset), sizes)
        reaches.append((shapes[access.tensor][at] - 1 - high) // factors[axis] + 1)
    return min(reaches) if reaches else None


def _range(index: Index, sizes: Mapping[Axis, int]) -> tuple[int, int]:
    ends = [factor * (sizes[axis] - 1) for axis, factor in index.terms]
    return index.offset + sum(e for e in ends if e < 0), index.offset + sum(e for e in ends if e > 0)
