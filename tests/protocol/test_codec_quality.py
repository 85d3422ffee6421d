"""What each codec loses: mean squared errors against published figures and formulas, unbiasedness, error feedback."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from coterie.protocol.codecs import NO_STATE, CodecState, Keys, Shape, parse
from coterie.protocol.codecs.centroids import CENTROIDS
from coterie.protocol.codecs.feedback import FADING, faded
from coterie.protocol.codecs.grid import EXTENT, Grid
from coterie.protocol.codecs.sparse_quant import quantise, restore
from coterie.protocol.codecs.topk import largest

Vector = np.ndarray[Any, np.dtype[np.float32]]
LONG = 1 << 17


def keys(number: int = 0) -> Keys:
    return Keys.of(task=f"task_{number}", plan="plan-1", base="base-1", section="delta")


@cache
def heavy_tailed(length: int = LONG, seed: int = 0) -> Vector:
    """Student's t with five degrees of freedom."""
    vector = np.random.default_rng(seed).standard_t(5, length).astype(np.float32)
    vector.flags.writeable = False
    return vector


@cache
def log_normal(length: int = LONG, seed: int = 0) -> Vector:
    generator = np.random.default_rng(seed)
    vector = (np.exp(generator.standard_normal(length)) * generator.choice([-1, 1], length)).astype(np.float32)
    vector.flags.writeable = False
    return vector


def through(name: str, vector: Vector, number: int = 0, shape: Shape | None = None) -> np.ndarray[Any, Any]:
    codec, form = parse(name), shape or Shape.flat(vector.size)
    payload, _ = codec.encode(vector, keys(number), form, NO_STATE)
    return codec.decode(payload, keys(number), form, 0, vector.size).astype(np.float64)


def error(name: str, vector: Vector, number: int = 0) -> float:
    """Squared error in parts of the vector's energy."""
    exact = vector.astype(np.float64)
    return float(((through(name, vector, number) - exact) ** 2).sum() / (exact**2).sum())


# The figures of the papers' quantisers for normal numbers; those of EDEN follow from the Lloyd-Max distortion D as
# D / (1 - D) (unbiased) and D (biased).
PUBLISHED = {
    "eden:1": 0.5709, "eden:2": 0.1322, "eden:3": 0.0360, "eden:4": 0.0096,
    "eden:7": 0.000164, "eden:8": 0.0000412,
    "eden:1:biased": 0.3634, "eden:2:biased": 0.1167, "eden:3:biased": 0.0348, "eden:4:biased": 0.0095,
    "drive": 0.3634,
    "rotate+grid:1": 8.00, "rotate+grid:2": 0.665, "rotate+grid:3": 0.1225, "rotate+grid:4": 0.0270,
    "rotate+grid:5": 0.0068, "rotate+grid:6": 0.0019, "rotate+grid:8": 0.00017,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_rotated_codecs_lose_what_is_published(name: str) -> None:
    # The last published digit is half of its unit.
    digits = str(PUBLISHED[name])
    unit = 10.0 ** -(len(digits.split(".")[1]))
    assert error(name, heavy_tailed()) == pytest.approx(PUBLISHED[name], rel=0.02, abs=unit / 2)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("length", [64, 4096, 9_000])
def test_rotated_codecs_lose_no_more_on_short_vectors_with_long_tails(name: str, length: int) -> None:
    mean = np.mean([error(name, log_normal(length, seed), seed) for seed in range(12)])
    assert mean < 1.1 * PUBLISHED[name]


@pytest.mark.parametrize("bits", range(9, 17))
def test_a_fine_grid_loses_its_rounding_and_next_to_nothing_at_its_ends(bits: int) -> None:
    """Δ²/6 is the rounding; what a normal distribution has beyond ±k comes on top: rare, so only bounded here."""
    half, top = EXTENT[bits], (1 << bits) - 1
    rounding = (2 * half / top) ** 2 / 6
    beyond = math.erfc(half / math.sqrt(2)) * (1 + half * half) - 2 * half * math.exp(-half * half / 2) / math.sqrt(
        2 * math.pi
    )
    assert 0 < beyond < 0.2 * rounding
    lost = np.mean([error(f"rotate+grid:{bits}", heavy_tailed(), number) for number in range(4)])
    assert 0.98 * rounding < lost < 1.25 * rounding


def test_centroids_are_the_published_ones() -> None:
    published = {
        1: (0.7978845608,),
        2: (0.4527800398, 1.5104176087),
        3: (0.2450941832, 0.7560052489, 1.3439092613, 2.1519457045),
    }
    for bits, half in published.items():
        np.testing.assert_allclose(CENTROIDS[bits], half, rtol=0, atol=1e-7)
    assert (CENTROIDS[4][0], CENTROIDS[4][-1]) == pytest.approx((0.1283950298, 2.7326377810), abs=1e-4)


def test_topk_loses_what_it_leaves_out() -> None:
    for fraction, published in ((0.001, 0.860), (0.01, 0.620), (0.1, 0.232)):
        vector = log_normal()
        kept = np.sort(np.abs(vector.astype(np.float64)))[-math.ceil(fraction * LONG) :]
        left = 1 - (kept**2).sum() / (vector.astype(np.float64) ** 2).sum()
        assert error(f"topk:{fraction:g}", vector) == pytest.approx(left, rel=1e-9)
        assert left == pytest.approx(published, rel=0.02)


def test_topk_keeps_the_earlier_of_equal_magnitudes() -> None:
    assert largest(np.array([1, 3, 3, 2, 3], np.float32), 2).tolist() == [1, 2]
    assert through("topk:0.4", np.array([1, -3, 3, 2, 3], np.float32)).tolist() == [0, -3, 3, 0, 0]


def _steps(name: str, block: int, unit: Callable[[Any], float]) -> float:
    """Σ f (1 - f) t² over the energy."""
    vector = log_normal().astype(np.float64)
    lost = 0.0
    for low in range(0, vector.size, block):
        part = np.abs(vector[low : low + block])
        fraction = part / unit(part) % 1
        lost += float((fraction * (1 - fraction)).sum()) * unit(part) ** 2
    return lost / float((vector**2).sum())


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("qsgd:2", lambda: _steps("qsgd:2", 512, lambda x: float(np.linalg.norm(x)))),
        ("qsgd:4", lambda: _steps("qsgd:4", 512, lambda x: float(np.linalg.norm(x)) / 7)),
        ("qsgd:8+rice", lambda: _steps("qsgd:8", 512, lambda x: float(np.linalg.norm(x)) / 127)),
        ("terngrad", lambda: _steps("terngrad", 4096, lambda x: float(x.max()))),
        ("round:1", lambda: _steps("round:1", 4096, lambda x: float(np.sqrt((x**2).mean())))),
        ("randk:0.1", lambda: 65536 / math.ceil(6553.6) - 1),
        ("sign", lambda: 1 - float(np.abs(log_normal()).mean()) ** 2 / float((log_normal() ** 2).mean())),
    ],
)
def test_other_codecs_lose_what_their_formula_says(name: str, formula: Callable[[], float]) -> None:
    mean = np.mean([error(name, log_normal(), number) for number in range(4)])
    assert mean == pytest.approx(formula(), rel=0.05)


def test_rounding_of_normal_numbers_takes_about_its_entropy() -> None:
    vector = np.random.default_rng(0).standard_normal(LONG).astype(np.float32)
    for step, entropy, lost in ((1, 2.16, 0.166), (2, 1.42, 0.66)):
        payload, _ = parse(f"round:{step}").encode(vector, keys(), Shape.flat(LONG), NO_STATE)
        assert 8 * len(payload) / LONG < entropy + 0.25
        assert error(f"round:{step}", vector) == pytest.approx(lost, rel=0.02)


UNBIASED = ("qsgd:2", "qsgd:4+rice", "terngrad", "round:1", "randk:0.25", "eden:1", "eden:2", "eden:4", "eden:8",
            "rotate+grid:4", "rotate+grid:8", "rotate+grid:8:400")  # fmt: skip


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_of_many_updates_is_the_vector(name: str) -> None:
    """The error of the mean of n independent decodes is the error of one over √n, and nothing stays."""
    vector, count = log_normal(4160, 3), 1000
    codec, shape = parse(name), Shape.flat(vector.size)
    total = np.zeros(vector.size)
    alone = 0.0
    for number in range(count):
        # A round of its own for each: the shared seed differs too.
        seeds = Keys.of(task=f"t{number}", plan=f"p{number}", base="b", section="s")
        value = codec.decode(codec.encode(vector, seeds, shape, NO_STATE)[0], seeds, shape, 0, vector.size)
        total += value
        alone += float(((value - vector.astype(np.float64)) ** 2).sum())
    lost = float(((total / count - vector) ** 2).sum())
    # A grid's ends keep a little for good: what lies beyond them.
    stays = 0.001 * float((vector.astype(np.float64) ** 2).sum()) if "grid" in name else 0.0
    assert lost < 1.3 * alone / count**2 + stays


@pytest.mark.parametrize("kind", ["log-normal", "Cauchy", "two elements"])
def test_the_mean_of_a_hundred_clients_by_eden_keeps_no_bias_on_heavy_tails(kind: str) -> None:
    """Where a few elements hold a block's weight, signs and one Hadamard transform would lose a part every time."""
    draw, vector = np.random.default_rng(0), np.zeros(4096, np.float32)
    if kind == "two elements":
        vector[:2] = 1, 0.3
    else:
        tails = draw.normal(size=4096) * np.exp(3 * draw.normal(size=4096))
        vector[:] = tails if kind == "log-normal" else draw.standard_cauchy(4096)
    codec, shape, total, alone = parse("eden:1"), Shape.flat(vector.size), np.zeros(vector.size), 0.0
    energy = float((vector.astype(np.float64) ** 2).sum())
    for number in range(100):
        payload = codec.encode(vector, keys(number), shape, NO_STATE)[0]
        decoded = codec.decode(payload, keys(number), shape, 0, vector.size).astype(np.float64)
        total += decoded
        alone += float(((decoded - vector) ** 2).sum()) / energy / 100
    lost = float(((total / 100 - vector) ** 2).sum()) / energy
    assert alone == pytest.approx(0.571, rel=0.1)
    assert lost < 1.4 * alone / 100


def test_randk_keeps_the_same_elements_for_every_update_of_a_round() -> None:
    first, second = (np.flatnonzero(through("randk:0.1", log_normal(1000), number)) for number in (1, 2))
    assert first.tolist() == second.tolist() and first.size == 100


@pytest.mark.parametrize("bits", [1, 4, 8, 12, 13, 16])
@pytest.mark.parametrize("length", [50, 4096, 5000])
def test_numbers_on_a_public_grid_can_be_added_before_they_are_decoded(bits: int, length: int) -> None:
    grid, shape = Grid(bits, 3.0), Shape.flat(length)
    vectors = [log_normal(length, seed) / np.float32(np.sqrt(length)) for seed in range(5)]
    total = sum(grid.numbers(vector, keys(n), shape).astype(np.int64) for n, vector in enumerate(vectors))
    alone = sum(through(grid.name, vector, n) for n, vector in enumerate(vectors))
    np.testing.assert_allclose(grid.of_sum(np.asarray(total), 5, keys(), shape), alone, rtol=0, atol=1e-5)
    # The shared rotation is the round's: any update's keys decode the sum.
    assert (
        grid.of_sum(np.asarray(total), 5, keys(77), shape).tolist()
        == grid.of_sum(np.asarray(total), 5, keys(), shape).tolist()
    )


def test_a_vector_beyond_the_public_norm_is_shortened_to_it() -> None:
    vector = log_normal(4096)
    direction = vector / np.linalg.norm(vector)
    shortened = through("rotate+grid:8:2", vector)
    assert np.linalg.norm(shortened - 2 * direction) < 0.05
    assert set(EXTENT) == set(range(1, 17))


SHORTENING = ("float16", "bfloat16", "int8", "int8:channel+rice", "topk:0.05", "sign", "eden:1", "eden:4:biased",
              "drive", "powersgd:2")  # fmt: skip


@pytest.mark.parametrize("name", SHORTENING)
def test_with_error_feedback_nothing_is_lost_for_good(name: str) -> None:
    """The sum of all decoded updates and the last error is the sum of all vectors; the error stays bounded."""
    shape, codec = Shape((3000, 40), (30, 1)), parse(f"{name}+ef")
    state: CodecState = NO_STATE
    sent, wanted = np.zeros(shape.length), np.zeros(shape.length)
    sizes: list[float] = []
    for number in range(60):
        vector = (heavy_tailed(shape.length, number) + 1).astype(np.float32)
        payload, state = codec.encode(vector, keys(number), shape, state)
        sent += codec.decode(payload, keys(number), shape, 0, shape.length)
        wanted += vector
        sizes.append(float(np.linalg.norm(state["residual"])))
    np.testing.assert_allclose(sent + state["residual"], wanted, rtol=0, atol=0.02)
    assert max(sizes[30:]) < 2 * max(sizes[:30]) + 1e-3


def test_a_state_of_another_layout_is_forgotten() -> None:
    codec, shape = parse("powersgd:1+ef"), Shape((40,), (5,))
    odd: CodecState = {"residual": np.ones(3, np.float32), "q.0": np.ones((2, 2), np.float32)}
    vector = heavy_tailed(40)
    fresh, stale = (codec.encode(vector, keys(), shape, state)[0] for state in (NO_STATE, odd))
    assert fresh == stale


def test_an_error_fades_while_its_client_is_away() -> None:
    state: CodecState = {"codec/delta/residual": np.ones(2, np.float32), "codec/delta/q.0": np.ones(2, np.float32)}
    assert faded(state, 0) is state
    away = faded(state, 3)
    np.testing.assert_allclose(away["codec/delta/residual"], FADING**3, rtol=1e-6)
    assert away["codec/delta/q.0"].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["drive+ef", "eden:2:biased+ef", "eden:1+ef"])
def test_an_error_that_fades_away_in_a_block_without_news_can_still_be_sent(name: str) -> None:
    codec, shape, state = parse(name), Shape.flat(640), NO_STATE
    vector = log_normal(640) * np.float32(1e-10)
    for number in range(150):
        payload, state = codec.encode(vector, keys(number), shape, state)
        assert np.isfinite(codec.decode(payload, keys(number), shape, 0, 640)).all()
        vector = np.zeros(640, np.float32)
    assert np.abs(state["residual"]).max() < 1e-20


def test_powersgd_finds_a_matrix_of_low_rank_and_leaves_vectors_alone() -> None:
    generator = np.random.default_rng(0)
    matrix = (generator.standard_normal((30, 2)) @ generator.standard_normal((2, 20))).astype(np.float32)
    vector = np.concatenate([matrix.reshape(-1), np.arange(7, dtype=np.float32)])
    shape = Shape((600, 7), (30, 1))
    decoded = through("powersgd:2", vector, shape=shape)
    np.testing.assert_allclose(decoded[:600], vector[:600], rtol=0, atol=1e-4)
    assert decoded[600:].tolist() == list(range(7))
    assert parse("powersgd:2").max_bytes(shape) == 4 * (2 * (30 + 20) + 7)


def test_powersgd_goes_on_from_the_last_factor() -> None:
    matrix = heavy_tailed(2000).copy()
    shape, codec = Shape((2000,), (40,)), parse("powersgd:2")
    state: CodecState = NO_STATE
    lost: list[float] = []
    for _ in range(6):
        payload, state = codec.encode(matrix, keys(), shape, state)
        lost.append(float(((codec.decode(payload, keys(), shape, 0, 2000) - matrix) ** 2).sum()))
    values = np.linalg.svd(matrix.reshape(40, 50), compute_uv=False)
    assert lost[-1] < lost[0] and lost[-1] < 1.05 * float((values[2:] ** 2).sum())


def test_sparse_quantisation_gives_the_example_of_mindsporess_documentation() -> None:
    """MindSpore Federated documentation, communication compression: the example of 8-bit quantisation."""
    data = np.array([
        0.03356021, -0.01842778, -0.009684053, 0.025363436, -0.027571501, 0.0077043395, 0.016391572, -0.03598478,
        -0.0009508357,
    ])  # fmt: skip
    levels, (least, most) = quantise(data)
    assert levels.tolist() == [127, -64, -32, 97, -97, 32, 64, -128, 0]
    assert (most - least) / 255 == pytest.approx(0.000272725450980392, rel=1e-14)
    assert np.abs(restore(levels, least, most) - data).max() <= (most - least) / 510 + 1e-9


def test_sparse_quantisation_sends_a_byte_for_each_kept_element() -> None:
    decoded = through("diff_sparse_quant", heavy_tailed(1000))
    assert np.count_nonzero(decoded) == 400
    assert parse("diff_sparse_quant").max_bytes(Shape.flat(1000)) == 400 + 16


def test_eden_takes_its_bits_and_little_more() -> None:
    shape = Shape.flat(1_663_370)  # the CNN of the first paper on federated averaging
    assert shape.length * 4 / parse("eden:4").max_bytes(shape) > 7.9
    assert shape.length * 4 / parse("topk:0.01+ef").max_bytes(shape) > 30
    for length in (1, 63, 64, 65, 4095, 4097):
        assert parse("eden:4").max_bytes(Shape.flat(length)) <= length / 2 + 32 + 4 * (1 + length // 4096 + 6)
