"""The steps of a gated recurrent unit, written out, with a gradient by hand: a step back is six operators, because all
that does not depend on what flows back is computed for all steps at once. Automatic differentiation makes fifteen.
"""

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.derived import custom_vjp


def gru_steps(gates: Array, given: Array, first: Array, weight: Array, bias: Array, *, steps: int) -> Array:
    """h of every step, [T B, hidden] with time first, from h = ``first`` [B, hidden].

    r = σ(gates + W_r h), z = σ(gates + W_z h), n = tanh(given + r (W_n h + bias)), h' = (1 - z) n + z h.
    gates [T B, 2 hidden], r before z, and given [T B, hidden]: the input's share. weight [3 hidden, hidden]: W_r, W_z
    and W_n. bias [hidden]. steps: T, at least 1.
    """
    rows, hidden = first.shape

    def by_step(array: Array) -> tuple[Array, ...]:
        return ops.split(array, [rows] * steps, axis=0)

    def halves(array: Array) -> tuple[Array, ...]:
        return ops.split(array, [hidden] * 2, axis=1)

    def forward(gates: Array, given: Array, h: Array, weight: Array, bias: Array) -> list[tuple[Array, ...]]:
        """For each step: both gates, z, the state's share in n, n, and h before and after."""
        both_weights, new_weight = ops.split(weight, [2 * hidden, hidden], axis=0)
        first_factor, second_factor = xp.matrix_transpose(both_weights), xp.matrix_transpose(new_weight)
        made: list[tuple[Array, ...]] = []
        for gates_t, given_t in zip(by_step(gates), by_step(given), strict=True):
            both = ops.sigmoid(h @ first_factor + gates_t)
            reset, keep = halves(both)
            own = h @ second_factor + bias
            new = ops.tanh(given_t + reset * own)
            after = new + keep * (h - new)
            made.append((both, keep, own, new, h, after))
            h = after
        return made

    def gradient(
        gates: Array, given: Array, h: Array, weight: Array, bias: Array, _: Array, told: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        made = forward(gates, given, h, weight, bias)
        keeps = [parts[1] for parts in made]
        both, keep, own, new, before = (xp.concat(list(parts), axis=0) for parts in list(zip(*made, strict=True))[:5])
        reset, _ = halves(both)
        slope_reset, slope_keep = halves(both - both * both)
        inner = (1.0 - keep) * (1.0 - new * new)
        # By h' of a step: r, z and the state's share in n, before their functions.
        slopes = xp.concat([inner * own * slope_reset, (before - new) * slope_keep, inner * reset], axis=1)
        reached, moved = list[Array](), list[Array]()
        flow = xp.zeros_like(h)
        slopes_by_step = by_step(xp.reshape(slopes, (-1, 3, hidden)))
        for told_t, slopes_t, keep_t in reversed(list(zip(by_step(told), slopes_by_step, keeps, strict=True))):
            total = told_t if not reached else flow + told_t
            moved_t = xp.reshape(xp.reshape(total, (rows, 1, hidden)) * slopes_t, (rows, 3 * hidden))
            flow = moved_t @ weight + total * keep_t
            reached.append(total)
            moved.append(moved_t)
        all_moved = xp.concat(moved[::-1], axis=0)
        to_gates, to_own = ops.split(all_moved, [2 * hidden, hidden], axis=1)
        to_given = xp.concat(reached[::-1], axis=0) * inner
        return to_gates, to_given, flow, xp.matrix_transpose(all_moved) @ before, xp.sum(to_own, axis=0)

    @custom_vjp(gradient)
    def outputs(gates: Array, given: Array, h: Array, weight: Array, bias: Array) -> Array:
        return xp.concat([parts[-1] for parts in forward(gates, given, h, weight, bias)], axis=0)

    # A gradient by hand has the dtypes of its arguments, so they are one: float64 rows meet float32 weights.
    return outputs(gates, given, *(xp.astype(array, gates.dtype) for array in (first, weight, bias)))
