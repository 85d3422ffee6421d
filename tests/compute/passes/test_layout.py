"""Transpositions of a chain meet and cancel."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.passes.inference import choose_layout
from tests.compute.passes.graphs import answers, channels_last, kinds, numbers, of

TRANSPOSITIONS: Mapping[str, tuple[Callable[[Array], Array], tuple[int, ...], int, int]] = {
    # name: function, shape, transpositions before, after
    "a network in channels last": (channels_last, (2, 6, 6, 3), 4, 1),
    "there and back around a bias": (
        lambda x: cnp.permute_dims(cnp.permute_dims(x, (0, 2, 3, 1)) + numbers(3), (0, 3, 1, 2)),
        (2, 3, 4, 4),
        2,
        0,
    ),
    "two branches of one order": (
        lambda x: cnp.permute_dims(x, (0, 2, 3, 1)) + cnp.permute_dims(cnp.tanh(x), (0, 2, 3, 1)),
        (2, 3, 4, 4),
        2,
        1,
    ),
    "into a mean over places": (
        lambda x: cnp.mean(cnp.permute_dims(x, (0, 2, 3, 1)), axis=(1, 2)),
        (2, 3, 4, 4),
        1,
        0,
    ),
    "past a concatenation": (
        lambda x: cnp.permute_dims(
            cnp.concat([cnp.permute_dims(x, (0, 2, 3, 1)), cnp.permute_dims(x * x, (0, 2, 3, 1))], axis=-1),
            (0, 3, 1, 2),
        ),
        (2, 3, 4, 4),
        3,
        0,
    ),
    "one alone": (lambda x: cnp.permute_dims(x, (0, 2, 3, 1)), (2, 3, 4, 4), 1, 1),
}


@pytest.mark.capability("G6")
@pytest.mark.parametrize("case", TRANSPOSITIONS)
def test_g6_transpositions_meet_and_cancel(case: str) -> None:
    """A chain keeps at most those at its ends: fewer would be another function."""
    fn, shape, before, left = TRANSPOSITIONS[case]
    graph = of(fn, *shape)
    assert kinds(graph)["transpose"] == before
    after = choose_layout(graph)
    assert kinds(after)["transpose"] == left
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9, atol=1e-9)
