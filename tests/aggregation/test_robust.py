"""Rules that see every update: known answers, formulas written out plainly, laws, refusals."""

import json
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.reducers import RULES, STEPS, InMemory, aggregate, reducer
from coterie.aggregation.reducers.source import canonical, gram

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "robust.json").read_text("utf-8"))
Matrix = npt.NDArray[Any]
SINGLE = (
    *("median", "geometric_median", "centered_clipping(10,3)", "adasum"),
    *(f"{name}(1)" for name in ("trimmed_mean", "meamed", "krum", "multi_krum", "bulyan", "mda", "caf", "smea")),
    *("norm_bound(3)+nnm(1)+trimmed_mean(1)", "bucketing(2)+median", "arc(1)+mean", "nnm(1)+bulyan(1)"),
)


def updates(count: int, length: int, seed: int = 0) -> Matrix:
    return np.random.default_rng(seed).normal(size=(count, length)).astype(np.float32)


@pytest.mark.parametrize("case", VECTORS["reducers"], ids=lambda case: case["reducer"])
def test_known_answers(case: dict[str, Any]) -> None:
    np.testing.assert_allclose(aggregate(case["reducer"], VECTORS["updates"]), case["expected"], rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", VECTORS["steps"], ids=lambda case: case["step"])
def test_known_answers_of_steps(case: dict[str, Any]) -> None:
    rows = np.array(VECTORS["updates"], np.float32)
    mixed = STEPS[case["step"]].make(*case["numbers"]).mix(gram(InMemory(rows)), np.random.default_rng) @ rows
    np.testing.assert_allclose(mixed, case["expected"], rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["reducer"])
def test_too_many_attackers_for_the_updates_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(errors.UpdateRefused, match=r"2f ≥ n|4f \+ 3") as caught:
        aggregate(case["reducer"], VECTORS["updates"])
    assert caught.value.reason == case["code"]


# The rules written out as their papers say them, over the updates themselves and in float64.


def _distances(x: Matrix) -> Matrix:
    return ((x[:, None] - x[None]) ** 2).sum(axis=2)


def _multi_krum(x: Matrix, f: int, m: int) -> Matrix:
    scores = np.sort(_distances(x), axis=1)[:, 1 : len(x) - f].sum(axis=1)
    return x[np.argsort(scores, kind="stable")[:m]].mean(axis=0)


def _around(x: Matrix, keep: int) -> Matrix:
    centre = np.median(x, axis=0)
    nearest = np.argsort(np.abs(np.sort(x, axis=0) - centre), axis=0, kind="stable")[:keep]
    return np.take_along_axis(np.sort(x, axis=0), nearest, axis=0).mean(axis=0)


def _bulyan(x: Matrix, f: int) -> Matrix:
    left = list(range(len(x)))
    chosen: list[int] = []
    while len(chosen) < len(x) - 2 * f:
        part, allowed = x[left], min(f, max(len(left) - 2, 0))
        scores = np.sort(_distances(part), axis=1)[:, 1 : len(left) - allowed].sum(axis=1)
        chosen.append(left.pop(int(np.argmin(scores))))
    return _around(x[chosen], len(chosen) - 2 * f)


def _weiszfeld(x: Matrix, nu: float, iterations: int) -> Matrix:
    z = np.zeros(x.shape[1])
    for _ in range(iterations):
        near = 1 / np.maximum(np.linalg.norm(x - z, axis=1), nu)
        z = near @ x / near.sum()
    return z


def _clipping(x: Matrix, tau: float, iterations: int, start: Matrix | None = None) -> Matrix:
    v = np.zeros(x.shape[1]) if start is None else start.astype(np.float64)
    for _ in range(iterations):
        apart = x - v
        v = v + (apart * np.minimum(1, tau / np.linalg.norm(apart, axis=1))[:, None]).mean(axis=0)
    return v


def _nnm(x: Matrix, f: int) -> Matrix:
    return np.stack([x[np.argsort(row, kind="stable")[: len(x) - f]].mean(axis=0) for row in _distances(x)])


def _bounded(x: Matrix, bound: float) -> Matrix:
    return x * np.minimum(1, bound / np.linalg.norm(x, axis=1))[:, None]


def _arc(x: Matrix, f: int) -> Matrix:
    norms = np.linalg.norm(x, axis=1)
    clipped = int(2 * f / len(x) * (len(x) - f))
    return _bounded(x, float(np.sort(norms)[len(x) - clipped - 1]))


def _trimmed(x: Matrix, f: int) -> Matrix:
    return np.sort(x, axis=0)[f : len(x) - f].mean(axis=0)


def _mda(x: Matrix, f: int) -> Matrix:
    apart = _distances(x)
    sets = combinations(range(len(x)), len(x) - f)
    return x[list(min(sets, key=lambda chosen: apart[np.ix_(chosen, chosen)].max()))].mean(axis=0)


def _narrowed(x: Matrix) -> Matrix:
    """The updates in as many coordinates as there are updates, turned."""
    return np.linalg.qr(x.T)[1].T


def _smea(x: Matrix, f: int) -> Matrix:
    near = _narrowed(x)

    def widest(chosen: tuple[int, ...]) -> float:
        return float(np.linalg.norm(near[list(chosen)] - near[list(chosen)].mean(axis=0), ord=2))

    return x[list(min(combinations(range(len(x)), len(x) - f), key=widest))].mean(axis=0)


def _caf(x: Matrix, f: int) -> Matrix:
    near, weights = _narrowed(x), np.ones(len(x))
    means: dict[float, Matrix] = {}
    while weights.sum() > len(x) - 2 * f:
        share = weights / weights.sum()
        apart = near - share @ near
        _, sizes, directions = np.linalg.svd(np.sqrt(share)[:, None] * apart)
        means[float(sizes[0])] = share @ x
        along = (apart @ directions[0]) ** 2
        weights = weights * np.maximum(1 - along / along[weights > 0].max(), 0)
    return means[min(means)]


FORMULAS: dict[str, Callable[[Matrix], Matrix]] = {
    "krum(3)": lambda x: _multi_krum(x, 3, 1),
    "multi_krum(3)": lambda x: _multi_krum(x, 3, len(x) - 3),
    "multi_krum(3,m=5)": lambda x: _multi_krum(x, 3, 5),
    "median": lambda x: np.median(x, axis=0),
    "trimmed_mean(3)": lambda x: _trimmed(x, 3),
    "meamed(4)": lambda x: _around(x, len(x) - 4),
    "bulyan(3)": lambda x: _bulyan(x, 3),
    "mda(3)": lambda x: _mda(x, 3),
    "caf(3)": lambda x: _caf(x, 3),
    "smea(3)": lambda x: _smea(x, 3),
    "nnm(3)+smea(3)": lambda x: _smea(_nnm(x, 3), 3),
    "geometric_median": lambda x: _weiszfeld(x, 1e-6, 100),
    "geometric_median(iterations=30, nu=0.01)": lambda x: _weiszfeld(x, 0.01, 30),
    "centered_clipping(2,5)": lambda x: _clipping(x, 2, 5),
    "norm_bound(4)": lambda x: _bounded(x, 4).mean(axis=0),
    "arc(3)+mean": lambda x: _arc(x, 3).mean(axis=0),
    "arc()+krum(3)": lambda x: _multi_krum(_arc(x, 3), 3, 1),
    "nnm(3)+median": lambda x: np.median(_nnm(x, 3), axis=0),
    "nnm(3)+bulyan(3)": lambda x: _bulyan(_nnm(x, 3), 3),
    "norm_bound(6)+nnm(3)+trimmed_mean(3)": lambda x: _trimmed(_nnm(_bounded(x, 6), 3), 3),
    "norm_bound(6)+nnm(3)+geometric_median": lambda x: _weiszfeld(_nnm(_bounded(x, 6), 3), 1e-6, 100),
}


FORMULAS_OF_NINE: dict[str, Callable[[Matrix], Matrix]] = {
    "krum(2)": lambda x: _multi_krum(x, 2, 1),
    "multi_krum(2)": lambda x: _multi_krum(x, 2, 7),
    "bulyan(1)": lambda x: _bulyan(x, 1),
    "nnm(2)+median": lambda x: np.median(_nnm(x, 2), axis=0),
    "geometric_median": FORMULAS["geometric_median"],
}


@pytest.mark.parametrize("count", [15, 16])
@pytest.mark.parametrize("text", FORMULAS)
def test_a_rule_is_its_formula(text: str, count: int) -> None:
    # Updates of different lengths, a few far away; more columns than one strip of a product.
    x = updates(count, 20_000, seed=count) * np.linspace(0.5, 3, count, dtype=np.float32)[:, None] / 50
    x[:3] += 1.0
    # Ties (none here) fall by the canonical order, so the formula sees the updates in it.
    expected = FORMULAS[text](x.astype(np.float64))
    np.testing.assert_allclose(aggregate(text, x), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("text", ["smea(3)", "mda(3)", "caf(3)", "nnm(3)+smea(3)"])
def test_updates_that_are_equal_are_the_ones_taken(text: str, seed: int) -> None:
    """Their covariance is nothing but rounding, of either sign."""
    x = np.repeat(updates(1, 3000, seed), 16, axis=0)
    x[:3] = updates(3, 3000, seed + 100) + 1
    np.testing.assert_allclose(aggregate(text, x), x[-1], rtol=1e-6)


@pytest.mark.parametrize("text", ["krum(2)", "multi_krum(2)", "bulyan(1)", "nnm(2)+median", "geometric_median"])
@pytest.mark.parametrize(("offset", "spread"), [(1.0, 1e-4), (1e4, 1.0), (0.0, 1e-24)])
def test_distances_are_told_where_updates_all_but_agree_and_where_they_are_tiny(
    text: str, offset: float, spread: float
) -> None:
    """As when all clients took nearly the same step: float32 inner products hold nothing of the differences."""
    x = updates(9, 20_000, seed=5) * np.linspace(1, 1.3, 9, dtype=np.float32)[[3, 1, 7, 0, 8, 2, 5, 4, 6], None]
    x = (offset + spread * x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(
        aggregate(text, x), FORMULAS_OF_NINE[text](x.astype(np.float64)), rtol=1e-7, atol=spread * 1e-3
    )


def test_updates_of_zero_do_not_hold_the_geometric_median_where_its_steps_begin() -> None:
    honest = 1 + updates(11, 50) / 10
    got = aggregate("geometric_median", np.concatenate([np.zeros((9, 50), np.float32), honest]))
    assert np.abs(got - 1).max() < 0.3


def test_an_average_of_the_largest_numbers_does_not_overflow() -> None:
    x = np.full((5, 3), 3e38, np.float32)
    for text in ("trimmed_mean(1)", "meamed(1)", "median", "nnm(1)+trimmed_mean(1)", "mean"):
        np.testing.assert_allclose(aggregate(text, x), x[0], rtol=1e-6)


def test_random_groups_depend_on_the_updates_alone() -> None:
    x = updates(13, 40_000)
    expected = aggregate("bucketing(3)+median", x)
    order = np.random.default_rng(1).permutation(13)
    np.testing.assert_allclose(aggregate("bucketing(3)+median", x[order]), expected, atol=1e-5)
    narrow = _Narrow(x[order], canonical(x[order]))
    np.testing.assert_allclose(run_over("bucketing(3)+median", narrow), expected, atol=1e-5)
    x[0, 0] += 1
    assert np.abs(aggregate("bucketing(3)+median", x) - expected).max() > 0.1


class _Narrow(InMemory):
    """The same updates, in other blocks."""

    def blocks(self) -> Iterator[tuple[int, Any]]:
        for start in range(0, self.length, 7000):
            yield start, self.rows[:, start : start + 7000]


def run_over(text: str, source: InMemory) -> Matrix:
    over = reducer(text).over
    assert over is not None
    return over(source)


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_equal() -> None:
    np.testing.assert_allclose(aggregate("adasum", [[3, 0], [0, 4]]), [3, 4])
    np.testing.assert_allclose(aggregate("adasum", [[3, 4], [3, 4]]), [3, 4])
    np.testing.assert_allclose(aggregate("adasum", [[3, 4], [0, 0]]), [3, 4])
    a, b = updates(2, 50).astype(np.float64)
    dot = a @ b
    expected = a * (1 - dot / (2 * a @ a)) + b * (1 - dot / (2 * b @ b))
    np.testing.assert_allclose(aggregate("adasum", np.array([a, b], np.float32)), expected, rtol=1e-5, atol=1e-6)


def test_fltrust_believes_as_far_as_an_update_points_where_the_trusted_one_does() -> None:
    trusted = np.array([2.0, 0, 0])
    x = np.array([[5, 5, 0], [-9, 1, 0], [0.5, 0, 0]])
    # Cosines 1/√2, below 0 and 1; every update is scaled to length 2 first.
    share = np.array([2**-0.5, 0, 1])
    expected = share @ (x / np.linalg.norm(x, axis=1)[:, None] * 2) / share.sum()
    np.testing.assert_allclose(aggregate("fltrust", x, reference=trusted), expected, rtol=1e-6)
    with pytest.raises(errors.InputError, match="none was given"):
        aggregate("fltrust", x)
    with pytest.raises(errors.UpdateRefused, match="all were discarded"):
        aggregate("fltrust", -np.abs(x), reference=trusted)
    np.testing.assert_allclose(aggregate("norm_bound(1)+fltrust", x, reference=trusted), expected, rtol=1e-6)


def test_monna_averages_the_trusted_update_and_those_nearest_to_it() -> None:
    x = updates(9, 20_000)
    rows, trusted = x[1:], x[0]
    near = np.argsort(((x - trusted).astype(np.float64) ** 2).sum(axis=1), kind="stable")[:6]
    got = aggregate("monna(3)", rows, reference=trusted)
    np.testing.assert_allclose(got, x[near].astype(np.float64).mean(axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(aggregate("monna(3)", rows[::-1], reference=trusted), got, rtol=1e-6, atol=1e-7)
    # The example of ByzFL's documentation: MoNNA(1, 1).
    np.testing.assert_allclose(aggregate("monna(1)", [[1, 2, 3], [7, 8, 9]], reference=[4, 5, 6]), [2.5, 3.5, 4.5])
    # Liars who copy the trusted update do not take its place, and those far from it do not count.
    lies = np.concatenate([np.tile(trusted, (2, 1)), np.full((2, 20_000), 1e30, np.float32)])
    np.testing.assert_allclose(aggregate("monna(2)", lies, reference=trusted), trusted, rtol=1e-6)
    with pytest.raises(errors.InputError, match=r"aggregate\('monna\(3\)'"):
        aggregate("monna(3)", rows)
    with pytest.raises(errors.UpdateRefused, match="at least 6 updates"):
        aggregate("monna(3)", rows[:5], reference=trusted)


@pytest.mark.parametrize("count", [9, 10])
@pytest.mark.parametrize("f", [1, 2, 3, 4])
def test_the_closest_updates_are_found_without_a_look_at_each_set(count: int, f: int) -> None:
    """Also on a grid, where many sets are equally wide and the first in order counts."""
    for seed in range(8):
        x = updates(count, 2, seed) * (1 + seed)
        x = (np.round(x) if seed % 2 else x).astype(np.float32)
        x = x[canonical(x)]
        np.testing.assert_allclose(aggregate(f"mda({f})", x), _mda(x.astype(np.float64), f), atol=1e-6)


def test_liars_among_hundreds_are_left_out_by_the_smallest_diameter() -> None:
    x = updates(400, 30)
    x[::25] += 100.0
    honest = np.delete(x, np.arange(0, 400, 25), axis=0)
    np.testing.assert_allclose(aggregate("mda(16)", x), honest.astype(np.float64).mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("text", "most"), [("smea(4)", 33), ("bucketing(2)+smea(10)", 42), ("caf(250)", 584)])
def test_more_updates_than_a_rule_can_work_through_are_refused(text: str, most: int) -> None:
    with pytest.raises(errors.UpdateRefused, match=f"at most {most} updates, and there are {most + 1}") as caught:
        aggregate(text, updates(most + 1, 3))
    assert caught.value.reason == "too_many_updates"
    assert reducer(text).fewest <= most


@pytest.mark.parametrize("tau", [0.5, 5.0, 1e6], ids=str)
@pytest.mark.parametrize("width", [40, 20_000])
def test_centered_clipping_goes_on_from_the_last_aggregate(tau: float, width: int) -> None:
    x, last = 1 + updates(9, width) / 10, updates(1, width, seed=3)[0]
    text = f"centered_clipping({tau},3)"
    expected = _clipping(x.astype(np.float64), tau, 3, last)
    np.testing.assert_allclose(aggregate(text, x, reference=last), expected, rtol=1e-5, atol=1e-5)
    order = np.random.default_rng(1).permutation(9)
    np.testing.assert_allclose(aggregate(text, x[order], [2, 1] * 4 + [3], reference=last), expected, atol=1e-5)
    mixed = _clipping(_nnm(x.astype(np.float64), 2), tau, 3, last)
    np.testing.assert_allclose(aggregate(f"nnm(2)+{text}", x, reference=last), mixed, rtol=1e-5, atol=1e-5)
    from_zero = aggregate(text, x)
    np.testing.assert_allclose(from_zero, _clipping(x.astype(np.float64), tau, 3), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(aggregate(text, x, reference=np.zeros(width)), from_zero, rtol=1e-5, atol=1e-6)


def test_an_attacker_moves_centered_clipping_by_its_share_of_tau_from_where_it_was() -> None:
    last = updates(1, 500)[0]
    honest = np.tile(last, (8, 1))
    sent = np.concatenate([honest, np.full((2, 500), 1e6, np.float32)])
    moved = aggregate("centered_clipping(0.5)", sent, reference=last) - last
    assert np.linalg.norm(moved) == pytest.approx(2 / 10 * 0.5, rel=1e-4)


def test_a_reference_is_one_vector_of_the_length_of_updates() -> None:
    for text in ("fltrust", "centered_clipping"):
        with pytest.raises(errors.InputError, match="reference has 3 elements, the updates 5") as caught:
            aggregate(text, updates(4, 5), reference=[1, 2, 3])
        assert caught.value.reason == "updates_shape"
    x = updates(4, 5)
    np.testing.assert_array_equal(aggregate("median", x, reference=[1, 2, 3]), aggregate("median", x))


@settings(max_examples=6)
@given(seed=st.integers(0, 1 << 30), cut=st.integers(0, 9), order=st.permutations(range(9)))
@pytest.mark.parametrize("text", SINGLE)
def test_order_grouping_and_chunks_do_not_matter(text: str, seed: int, cut: int, order: list[int]) -> None:
    rule, x = reducer(text), updates(9, 12, seed)
    expected = aggregate(rule, x)
    left, right = rule.init(12), rule.init(12)
    for place in order[:cut]:
        left = rule.add(left, ((start, x[place, start : start + 5]) for start in range(0, 12, 5)), 7.0)
    for place in order[cut:]:
        right = rule.add(right, ((0, x[place]),), 2.0)
    merged = rule.merge(rule.merge(left, right), rule.init(12))
    assert (merged.count, merged.weight) == (9, 7.0 * cut + 2.0 * (9 - cut))
    np.testing.assert_allclose(rule.result(merged), rule.result(rule.merge(right, left)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rule.result(merged), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(aggregate(rule, x[order]), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", [text for text in SINGLE if "arc" not in text and text != "adasum"])
def test_updates_that_agree_are_the_result_whatever_weights_they_claim(text: str) -> None:
    one = updates(1, 40)[0] / 10
    x = np.tile(one, (9, 1))
    np.testing.assert_allclose(aggregate(text, x, weights=[1e4, *[1.0] * 8]), one, rtol=1e-5, atol=1e-6)


ROBUST = (
    *("median", "trimmed_mean(2)", "meamed(2)", "krum(2)", "multi_krum(2)", "bulyan(2)", "geometric_median"),
    *("mda(2)", "caf(2)", "smea(2)"),
)


@pytest.mark.parametrize("size", [1.0, 1e6, 3e38], ids=str)
@pytest.mark.parametrize("text", [*ROBUST, "nnm(2)+trimmed_mean(2)", "norm_bound(5)+nnm(2)+krum(2)", "nnm(2)+median"])
def test_two_attackers_of_eleven_cannot_leave_the_honest(text: str, size: float) -> None:
    """However large they are: also where their inner products leave float32."""
    honest = 1 + updates(9, 3000) / 100
    attackers = np.full((2, 3000), -size, np.float32)
    got = aggregate(text, np.concatenate([attackers, honest]))
    scale = 5 / np.linalg.norm(honest[0]) if "norm_bound" in text else 1.0
    assert np.abs(got - honest.mean(axis=0) * scale).max() < 0.1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("text", [*SINGLE, "mean", "norm_bound(2)"])
def test_what_is_not_finite_is_refused_by_name(text: str, value: float) -> None:
    x = updates(9, 70_000)
    x[3, 69_999] = value
    with pytest.raises(errors.UpdateRefused) as caught:
        aggregate(text, x)
    assert caught.value.reason == "not_finite"


def test_an_update_of_weight_zero_does_not_count() -> None:
    x = updates(4, 5)
    np.testing.assert_array_equal(aggregate("median", x, weights=[1, 1, 1, 0]), aggregate("median", x[:3]))
    with pytest.raises(errors.UpdateRefused, match="total weight of zero"):
        aggregate("median", x, weights=[0, 0, 0, 0])


BAD = {
    "": "reducer_invalid",
    "krum": "reducer_invalid",
    "krum(-1)": "reducer_invalid",
    "geometric_median(1e-6,10001)": "reducer_invalid",
    "centered_clipping(1,1000000000)": "reducer_invalid",
    "krum(1.5)": "reducer_invalid",
    "mda(17)": "reducer_invalid",
    "smea(11)": "reducer_invalid",
    "caf(251)": "reducer_invalid",
    "krum(nan)": "reducer_invalid",
    "krum(1,2)": "reducer_invalid",
    "krum(f=1,f=2)": "reducer_invalid",
    "krum(g=1)": "reducer_invalid",
    "krum(1)+mean": "reducer_invalid",
    "median+nnm(1)": "reducer_invalid",
    "arc()+median": "reducer_invalid",
    "norm_bound(0)+mean": "reducer_invalid",
    "krum(1": "reducer_invalid",
    "Krum(1)": "reducer_invalid",
    "mean+" * 100: "reducer_invalid",
    "mode": "unknown_reducer",
    "nnm(1)+mode": "unknown_reducer",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:24] or "nothing")
def test_text_that_is_no_reducer_is_refused(text: str) -> None:
    with pytest.raises(errors.ExperimentError) as caught:
        reducer(text)
    assert caught.value.reason == BAD[text]


@settings(max_examples=60)
@given(st.text(alphabet="abkrumne_0123456789.,+()=- ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        rule = reducer(text)
    except errors.ExperimentError:
        return
    assert reducer(rule.name).name == rule.name


def test_a_reducers_name_makes_it_again() -> None:
    for text in (*SINGLE, "norm_bound(1e-3)", "geometric_median(1e-8)", "multi_krum(1)"):
        name = reducer(text).name
        assert reducer(name).name == name
    assert {reducer(text).needs for text in ("mean", "norm_bound(2)")} == {"sums"}
    assert set(RULES) >= {"fltrust", "adasum", "bulyan"}


def test_updates_of_different_lengths_are_refused() -> None:
    for bad in ([[1, 2], [3]], [1, 2, 3], np.zeros((0, 3)), np.zeros((2, 2, 2))):
        with pytest.raises(errors.InputError) as caught:
            aggregate("median", bad)
        assert caught.value.reason == "updates_shape"
    with pytest.raises(errors.InputError, match="weights"):
        aggregate("mean", [[1.0], [2.0]], weights=[1.0])


def test_what_is_no_number_is_refused() -> None:
    given: list[Any] = [[[1 + 2j], [1]], [[None], [1]], [["1"], ["2"]], np.array([[1], [2]], "datetime64[s]")]
    for bad in given:
        with pytest.raises(errors.InputError) as caught:
            aggregate("median", bad)
        assert caught.value.reason == "updates_shape"


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, 1e308, None, "much"])
@pytest.mark.parametrize("text", ["mean", "median", "fltrust"])
def test_weights_that_are_none_are_refused_whatever_the_rule(text: str, weight: Any) -> None:
    with pytest.raises(errors.UpdateRefused) as refused:
        aggregate(text, [[1.0, 2], [1, 2]], weights=[weight, 1], reference=[1, 1])
    assert refused.value.reason == "bad_weight"
