"""What people write and send that is a little off: ties, spaces, large numbers, things that are no text."""

from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.reducers import aggregate, reducer


@pytest.mark.parametrize(
    "text", ["nnm(2)+meamed(1)", "nnm(1)+bulyan(1)", "nnm(2)+bulyan(2)", "arc(1)+krum(1)", "nnm(1)+mda(2)"]
)
def test_updates_on_a_grid_tie_alike_in_every_order(text: str) -> None:
    """Codecs give such updates; a mean over others in another order differs by an ulp, which decides ties."""
    draw = np.random.default_rng(5)
    for _ in range(20):
        x = (np.round(2 * draw.normal(size=(11, 33))) / 2).astype(np.float32)
        expected = aggregate(text, x)
        np.testing.assert_allclose(aggregate(text, x[draw.permutation(11)]), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("text", ["norm_bound(1e17)", "norm_bound(1e+17)+median", "centered_clipping(1e16)"])
def test_the_name_of_a_reducer_with_a_large_number_makes_it_again(text: str) -> None:
    name = reducer(text).name
    assert reducer(name).name == name


@pytest.mark.parametrize(
    "text", ["nnm(1) + trimmed_mean(1)", " nnm( 1 )+ trimmed_mean(1)", "nnm(1)\n+\ttrimmed_mean(1)"]
)
def test_spaces_around_parts_do_not_matter(text: str) -> None:
    assert reducer(text).name == "nnm(1)+trimmed_mean(1)"
    assert reducer("arc + krum(1)").name == "arc(1)+krum(1)"


@pytest.mark.parametrize("given", [None, 5, b"mean", ["mean"]], ids=str)
def test_what_is_no_text_is_no_reducer(given: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="must be text, not a") as caught:
        reducer(given)
    assert caught.value.reason == "reducer_invalid"
    with pytest.raises(errors.ExperimentError, match="must be text, not a"):
        aggregate(given, [[1.0]])


@pytest.mark.parametrize(
    ("text", "fewest", "because"),
    [
        ("krum(3)", 7, "2f ≥ n"),
        ("mda(3)", 7, "2f ≥ n"),
        ("smea(3)", 7, "2f ≥ n"),
        ("bulyan(1)", 7, r"4f \+ 3"),
        ("multi_krum(1,6)", 6, "the best 6 of them"),
        ("nnm(1)+multi_krum(1,6)", 6, "the best 6 of them"),
        ("nnm(3)+multi_krum(1,6)", 7, "2f ≥ n"),
        ("bucketing(4)+trimmed_mean(1)", 9, "2f ≥ n.*of every 4"),
    ],
)
def test_too_few_updates_are_refused_with_the_rule_s_own_reason(text: str, fewest: int, because: str) -> None:
    x = np.random.default_rng(0).normal(size=(fewest, 3)).astype(np.float32)
    assert aggregate(text, x).shape == (3,)
    with pytest.raises(errors.UpdateRefused, match=f"at least {fewest} updates.*: [^:]*{because}") as caught:
        aggregate(text, x[1:])
    assert caught.value.reason == "too_few_updates"
    assert ("2f" in because) == ("2f" in caught.value.message)


@pytest.mark.parametrize("text", ["mean", "median", "norm_bound(1)", "nnm(1)+krum(1)"])
def test_an_update_that_is_not_finite_is_named_by_its_own_number_beside_weights(text: str) -> None:
    x = np.ones((5, 4), np.float32)
    x[3, 2] = np.nan
    with pytest.raises(errors.UpdateRefused, match="Update 3 holds nan at element 2") as caught:
        aggregate(text, x, [1, 2, 3, 4, 5])
    assert caught.value.reason == "not_finite"


def test_a_weight_that_no_float_holds_is_refused_by_name() -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        aggregate("mean", [[1.0], [2.0]], [10**400, 1])
    assert caught.value.reason == "bad_weight"


def test_masked_updates_are_refused_since_what_is_hidden_would_count() -> None:
    masked = np.ma.masked_greater(np.ones((3, 2), np.float32), 0)
    for given in (masked, [masked[0], masked[1]]):
        with pytest.raises(errors.InputError, match="masked") as caught:
            aggregate("median", given)
        assert caught.value.reason == "updates_shape"
