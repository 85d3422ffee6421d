"""Which neighbouring stages one process makes, so that none has much more to do than the others."""

from collections.abc import Sequence
from itertools import accumulate


def balanced(costs: Sequence[float], groups: int) -> list[int]:
    """The group of each of the costs: neighbours together, none empty, and the dearest group as cheap as can be.

    groups: at most as many as there are costs.
    """
    sums = [0.0, *accumulate(costs)]
    # best[g][i]: of the first i costs in g groups, the dearest group, and where the last one begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for group in range(1, groups + 1):
        row: dict[int, tuple[float, int]] = {}
        for end in range(group, len(costs) - (groups - group) + 1):
            row[end] = min(
                (max(best[group - 1][begin][0], sums[end] - sums[begin]), begin)
                for begin in best[group - 1]
                if begin < end
            )
        best.append(row)
    found, end = [0] * len(costs), len(costs)
    for group in range(groups, 0, -1):
        begin = best[group][end][1]
        found[begin:end] = [group - 1] * (end - begin)
        end = begin
    return found
