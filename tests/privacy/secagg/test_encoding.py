"""Updates in the ring of secure aggregation: sums are exact within what the grid says, and nothing overflows."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ExperimentError, UpdateRefused
from coterie.privacy.secagg.decoding import decode
from coterie.privacy.secagg.encoding import Binding, EncodedVector, describe, encode, vector_spec
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol import spread
from coterie.protocol.codecs.grid import EXTENT
from coterie.protocol.metrics import METRICS, MetricSums
from coterie.protocol.sections import SectionSpec

LENGTH = 700
DELTA = SectionSpec(name="delta", length=LENGTH, slices=((0, LENGTH),))
SUMS = SectionSpec.extra(METRICS, 3, value_range=(-1e30, 1e30))
SPECS = (DELTA, SUMS)
BINDING = Binding("p" * 64, "b" * 64)


def source(number: int = 0) -> Callable[[int], bytes]:
    """The same bytes in every run, other ones at every call."""
    calls = itertools.count(1000 * number)
    return lambda count: next(calls).to_bytes(count, "little")


def update(number: int, *, weight: int, length: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    vector = np.random.default_rng(number).standard_normal(LENGTH)
    vector *= length / np.linalg.norm(vector)
    sums = np.array([weight, 0.37 * weight, weight // 2], np.float64)
    return {"delta": vector.astype(np.float32), METRICS: sums}


def total_of(sent: list[EncodedVector], sections: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """What the server has when all masks are gone: the sum modulo 2**bits of each section."""
    spec = vector_spec(sections)
    total = np.stack([one.vector.astype(np.uint64) for one in sent]).sum(axis=0)
    for segment, place in zip(spec.segments, spec.places().values(), strict=True):
        total[place] %= segment.modulus
    return total.astype(np.uint32)


def step_of(bits: int, norm: float) -> float:
    """The distance of two neighbours on the grid, for a block turned by an orthonormal matrix."""
    return 2 * EXTENT[bits] / ((1 << bits) - 1) * norm / np.sqrt(LENGTH)


@settings(max_examples=40)
@given(
    clients=st.integers(1, 12),
    cap=st.sampled_from([1, 7, 1000, 10_000]),
    bits=st.sampled_from([None, 2, 5, 8, 11]),
    norm=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 1 << 20),
)
def test_the_sum_is_the_sum_of_the_vectors_to_a_grid_step_for_every_unit_of_weight(
    clients: int, cap: int, bits: int | None, norm: float, seed: int
) -> None:
    sections = ring_sections(SPECS, clients=clients, weight_cap=cap, norm=norm, bits=bits)
    random = np.random.default_rng(seed)
    weights = random.integers(0, cap, clients, endpoint=True).tolist()
    updates = [update(seed + n, weight=w, length=0.3 * norm) for n, w in enumerate(weights)]
    sent = [
        encode(sections, SPECS, made, weight=weight, weight_cap=cap, binding=BINDING, entropy=source(n))
        for n, (made, weight) in enumerate(zip(updates, weights, strict=True))
    ]
    found = decode(sections, SPECS, total_of(sent, sections), survivors=clients, weight_cap=cap, binding=BINDING)
    assert (found.clients, found.weight, found.examples) == (clients, sum(weights), sum(weights))
    exact = np.sum([w * u["delta"].astype(np.float64) for w, u in zip(weights, updates, strict=True)], axis=0)
    # In a rotated block every element is off by less than a step for each unit of weight; 1 % is float32's rotation.
    step = step_of(sections[1].top.bit_length(), norm)
    bound = 1.01 * step * sum(weights) * np.sqrt(sections[1].values)
    assert np.linalg.norm(found.sections["delta"] - exact) <= bound
    sums = np.sum([u[METRICS] for u in updates], axis=0)
    assert sections[2].step is not None
    assert np.abs(found.sections[METRICS] - sums).max() <= clients * sections[2].step
    if sections[2].step <= 1:
        assert found.sections[METRICS][[0, 2]].tolist() == sums[[0, 2]].tolist()


def test_no_sum_overflows_at_the_bounds_of_every_client() -> None:
    """The largest numbers that clients may send, from as many as there may be: the sum is below the ring's size."""
    for clients, cap in ((1, 1), (3, 1000), (300, 1), (1000, 10_000), (65_535, 1), (1, 1 << 30)):
        for section in ring_sections(SPECS, clients=clients, weight_cap=cap, norm=10.0):
            units = 1 if section.name == METRICS else cap
            largest = cap if section.encoding == "exact" else units * section.top
            assert clients * largest < 1 << section.bits <= 1 << 32


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_numbers_of_a_client_stay_within_its_weight_times_the_top(value: float) -> None:
    sections = ring_sections(SPECS, clients=4, weight_cap=100, norm=1.0)
    spike = np.zeros(LENGTH, np.float32)
    spike[5] = value * 1e6
    sent = encode(
        sections, SPECS, {"delta": spike, METRICS: np.array([100.0, value * 1e9, 0.0])},
        weight=100, weight_cap=100, binding=BINDING, entropy=source(),
    )  # fmt: skip
    places = vector_spec(sections).places()
    assert sent.clipped and sent.clamped
    assert sent.vector[places["delta"]].max() <= 100 * sections[1].top
    assert sent.vector[places[METRICS]].max() <= sections[2].top
    found = decode(sections, SPECS, sent.vector, survivors=1, weight_cap=100, binding=BINDING)
    assert (found.clipped, found.clamped) == (1, 1)
    # Shortened to the public norm, and held to 64 for each example of the heaviest client.
    assert np.linalg.norm(found.sections["delta"]) / 100 == pytest.approx(1.0, rel=0.02)
    assert found.sections[METRICS][1] == pytest.approx(value * 6400, abs=sections[2].step or 0)


def test_a_vector_whose_length_lies_in_one_block_of_many_counts_as_clipped() -> None:
    length = 40 * 4096
    spec = SectionSpec(name="delta", length=length, slices=((0, length),))
    sections = ring_sections((spec,), clients=10, weight_cap=1, norm=1.0)
    vector = np.zeros(length, np.float32)
    vector[:4096] = 0.99 / 64
    sent = encode((sections), (spec,), {"delta": vector}, weight=1, weight_cap=1, binding=BINDING, entropy=source())
    even = np.full(length, 0.99 / np.sqrt(length), np.float32)
    other = encode(sections, (spec,), {"delta": even}, weight=1, weight_cap=1, binding=BINDING, entropy=source())
    assert sent.clipped and not other.clipped


def test_the_sum_is_right_on_average() -> None:
    """Rounding adds no direction: over many roundings the mean comes as near as its own spread allows."""
    sections = ring_sections(SPECS, clients=1, weight_cap=1, norm=1.0, bits=3)
    made = update(3, weight=1, length=0.3)
    made[METRICS] = np.array([1.0, 0.123456789, 0.5])
    found = [
        decode(
            sections,
            SPECS,
            encode(sections, SPECS, made, weight=1, weight_cap=1, binding=BINDING, entropy=source(n)).vector,
            survivors=1,
            weight_cap=1,
            binding=BINDING,
        ).sections["delta"]
        for n in range(400)
    ]
    off = np.mean(found, axis=0) - made["delta"]
    spread_of_mean = np.std(found, axis=0) / np.sqrt(400)
    assert np.abs(off / spread_of_mean).max() < 5
    assert np.linalg.norm(off) < 1.2 * np.linalg.norm(spread_of_mean)


@pytest.mark.parametrize("examples", [3, 100, 5000])
def test_metric_sums_over_more_examples_than_the_cap_keep_their_means(examples: int) -> None:
    sections = ring_sections(SPECS, clients=10, weight_cap=100, norm=1.0)
    made = update(1, weight=1) | {METRICS: np.array([examples, examples * 1.25, examples * 0.5])}
    sent = encode(sections, SPECS, made, weight=1, weight_cap=100, binding=BINDING, entropy=source())
    found = decode(sections, SPECS, sent.vector, survivors=1, weight_cap=100, binding=BINDING)
    assert found.examples == min(examples, 100)
    means = MetricSums.from_vector(("examples", "loss", "hit"), found.sections[METRICS]).means()
    assert means == pytest.approx({"loss": 1.25, "hit": 0.5}, abs=1e-6)


def test_counts_of_clients_come_out_whole() -> None:
    metrics = ("examples", "loss", "accuracy")
    specs = (SectionSpec.extra(METRICS, 3, value_range=(-1e30, 1e30)), spread.section(metrics))
    sections = ring_sections(specs, clients=3, weight_cap=1000, norm=1.0)
    sent: list[EncodedVector] = []
    sums = [MetricSums({"examples": 10.0 * n, "loss": 7.0 * n * n, "accuracy": 9.0}) for n in (1, 2, 3)]
    for n, one in enumerate(sums):
        made = {METRICS: one.to_vector(metrics), spread.SECTION: spread.histogram(metrics, one)}
        sent.append(encode(sections, specs, made, weight=5, weight_cap=1000, binding=BINDING, entropy=source(n)))
    found = decode(sections, specs, total_of(sent, sections), survivors=3, weight_cap=1000, binding=BINDING)
    counted = spread.count_sums(metrics, found.sections[spread.SECTION].astype(np.float32), clients=3)
    expected = [spread.count_sums(metrics, spread.histogram(metrics, one)) for one in sums]
    assert counted == expected[0].merge(expected[1]).merge(expected[2])


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "NaN": ({"delta": np.full(LENGTH, np.nan, np.float32)}, {}, "not_finite"),
    "infinite sums": ({METRICS: np.array([1.0, np.inf, 0.0])}, {}, "not_finite"),
    "another length": ({"delta": np.zeros(LENGTH - 1, np.float32)}, {}, "wrong_length"),
    "beyond the plan's range": ({METRICS: np.array([1.0, 1e31, 0.0])}, {}, "out_of_range"),
    "no examples but negative": ({METRICS: np.array([-1.0, 0.0, 0.0])}, {}, "out_of_range"),
    "weight above the cap": ({}, {"weight": 101}, "bad_weight"),
    "weight below zero": ({}, {"weight": -1}, "bad_weight"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_a_device_cannot_send_is_refused_before_it_is_rounded(case: str) -> None:
    vectors, arguments, code = BAD[case]
    sections = ring_sections(SPECS, clients=3, weight_cap=100, norm=1.0)
    given: dict[str, Any] = {"weight": 3, "weight_cap": 100, "binding": BINDING, "entropy": source()}
    with pytest.raises(UpdateRefused) as refused:
        encode(
            sections, SPECS, update(0, weight=3) | vectors,
            **(given | arguments),
        )  # fmt: skip
    assert refused.value.reason == code


# Rings of a coordinator that wants to know from a refusal what a vector holds; those of zeros would fit.
TOO_SMALL: dict[str, tuple[int, dict[str, int]]] = {
    "weights from 128 on": (0, {"bits": 7}),
    "the change of the weights": (1, {"bits": 9}),
    "a grid beyond what its top says": (1, {"bits": 16, "top": (1 << 15) - 2}),
    "sums of metrics": (2, {"bits": 20}),
}


@pytest.mark.parametrize("what", TOO_SMALL)
@pytest.mark.parametrize("length", [0.0, 1.0])
def test_rings_that_hold_some_vectors_only_are_refused_whatever_the_vector(what: str, length: float) -> None:
    index, changes = TOO_SMALL[what]
    sections = list(ring_sections(SPECS, clients=10, weight_cap=1000, norm=1.0))
    sections[index] = sections[index].model_copy(update=changes)
    one = update(1, weight=1, length=length)
    with pytest.raises(UpdateRefused) as refused:
        encode(sections, SPECS, one, weight=0, weight_cap=1000, binding=BINDING, entropy=source())
    assert refused.value.reason == "wrong_sections"


def test_an_encoded_vector_shows_nothing_of_itself() -> None:
    sections = ring_sections(SPECS, clients=10, weight_cap=1000, norm=1.0)
    made = encode(sections, SPECS, update(1, weight=3), weight=3, weight_cap=1000, binding=BINDING, entropy=source())
    assert "array" not in repr(made)


def test_a_section_that_is_absent_or_does_not_fit_is_refused() -> None:
    sections = ring_sections(SPECS, clients=3, weight_cap=100, norm=1.0)
    options: dict[str, Any] = {"weight": 1, "weight_cap": 100, "binding": BINDING, "entropy": source()}
    with pytest.raises(UpdateRefused, match="'metrics' is absent"):
        encode(sections, SPECS, {"delta": np.zeros(LENGTH, np.float32)}, **options)
    for wrong in (
        sections[1:],
        (*sections, sections[1].model_copy(update={"name": "other"})),
        (sections[0], sections[1].model_copy(update={"values": 64})),
        (sections[0], sections[1].model_copy(update={"norm": None})),
        (sections[0], sections[1].model_copy(update={"encoding": "exact"})),
    ):
        with pytest.raises(UpdateRefused) as refused:
            encode(wrong, SPECS, update(0, weight=1), **options)
        assert refused.value.reason == "wrong_sections"


def test_a_sum_that_honest_clients_cannot_have_is_refused() -> None:
    sections = ring_sections(SPECS, clients=3, weight_cap=100, norm=1.0)
    sent = encode(
        sections, SPECS, update(0, weight=7), weight=7, weight_cap=100, binding=BINDING, entropy=source()
    ).vector
    places = vector_spec(sections).places()
    for place, number, survivors, code in (
        (0, 1, 2, "bad_clients"),
        (0, 3, 1, "bad_clients"),
        (1, 101, 1, "bad_weight"),
        (3, 2, 1, "bad_clients"),
        (4, 2, 1, "bad_clients"),
        (places["delta"].start + 3, 7 * sections[1].top + 1, 1, "out_of_range"),
        (places[METRICS].start, sections[2].top + 1, 1, "out_of_range"),
    ):
        changed = sent.copy()
        changed[place] = number
        with pytest.raises(UpdateRefused) as refused:
            decode(sections, SPECS, changed, survivors=survivors, weight_cap=100, binding=BINDING)
        assert refused.value.reason == code
    with pytest.raises(UpdateRefused) as refused:
        decode(sections, SPECS, sent[:-1], survivors=1, weight_cap=100, binding=BINDING)
    assert refused.value.reason == "wrong_length"


@pytest.mark.parametrize(
    ("specs", "arguments", "said"),
    [
        pytest.param(SPECS, {"clients": 1 << 20, "weight_cap": 1 << 14}, "weights of 1048576 clients", id="weights"),
        pytest.param(SPECS, {"clients": 1 << 16, "weight_cap": 1 << 15}, "section 'delta'", id="grid"),
        pytest.param(SPECS, {"clients": 1000, "weight_cap": 10_000, "bits": 12}, "with 12 bits", id="asked bits"),
        pytest.param(
            (SectionSpec(name="square", length=1),), {"clients": 2, "weight_cap": 1}, "no public range", id="no range"
        ),
    ],
)
def test_what_32_bits_do_not_hold_is_refused_by_name(
    specs: tuple[SectionSpec, ...], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExperimentError, match=said) as refused:
        ring_sections(specs, norm=1.0, **arguments)
    assert refused.value.reason == "secure_range"


def test_most_bits_that_fit_are_taken_and_described() -> None:
    for clients, cap, bits, ring in ((1024, 1, 16, 26), (10, 10_000, 15, 32), (1000, 10_000, 8, 32), (2, 1, 16, 17)):
        sections = ring_sections(SPECS, clients=clients, weight_cap=cap, norm=10.0)
        assert (sections[1].top.bit_length(), sections[1].bits) == (bits, ring)
    described = {one.name: one for one in describe(ring_sections(SPECS, clients=1024, weight_cap=1, norm=10.0))}
    assert list(described) == ["counts", "delta", METRICS]
    assert described["delta"].bytes == 704 * 26 // 8
    assert "norm 10" in described["delta"].meaning and "65535" in described["delta"].meaning
