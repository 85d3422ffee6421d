"""Updates: what is encoded is what is read, in chunks of any size; everything else is refused under its own code."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import encode_tensors
from coterie.protocol.update import (
    METADATA_KEY,
    REFUSALS,
    Update,
    UpdateLimits,
    encode_update,
    read_update,
    write_update,
)

LAYOUT = Layout.of({"w": (5, 3), "b": (4,)})
SPECS = (
    SectionSpec.over("delta", LAYOUT, value_range=(-100.0, 100.0)),
    SectionSpec.extra("metrics", 2),
)
NAMES: dict[str, str] = {"task": "task_1", "plan": "plan-1", "base": "base-1"}
SECTIONS: dict[str, Any] = {
    "delta": np.linspace(-3, 3, 19, dtype=np.float32),
    "metrics": np.array([2.0**53 - 1, 0.1]),
}


def encoded(**change: Any) -> bytes:
    options: dict[str, Any] = {**NAMES, "weight": 7, "steps": 3, "specs": SPECS, "sections": SECTIONS, **change}
    return encode_update(**options).data


def header(**change: Any) -> dict[str, Any]:
    """A good update's header as JSON, with changes."""
    value: dict[str, Any] = {
        **NAMES,
        "format": "coterie-update-1",
        "kind": "update",
        "weight": 7,
        "steps": 3,
        "clients": 1,
        "sections": [
            {"name": "delta", "codec": "float32", "length": 19},
            {"name": "metrics", "codec": "float64", "length": 2},
        ],
    }
    return {**value, **change}


def crafted(head: Any = None, payloads: dict[str, Any] | None = None) -> bytes:
    """An update file of this header and these payload bytes."""
    data = {"delta": SECTIONS["delta"].tobytes(), "metrics": SECTIONS["metrics"].tobytes(), **(payloads or {})}
    tensors: dict[str, Any] = {
        name: value if isinstance(value, np.ndarray) else np.frombuffer(value, np.uint8)
        for name, value in data.items()
        if value is not None
    }
    text = head if isinstance(head, str) else canonical_json(header() if head is None else head).decode()
    return encode_tensors(tensors, {METADATA_KEY: text})


def section(name: str = "delta", codec: str = "float32", length: Any = 19) -> list[dict[str, Any]]:
    return [{"name": name, "codec": codec, "length": length}, header()["sections"][1]]


def refused(source: bytes, **options: Any) -> str:
    with pytest.raises(errors.UpdateRefused) as caught:
        read_update(source, options.pop("specs", SPECS), **options).check_finite()
    assert caught.value.reason in REFUSALS
    assert len(str(caught.value)) < 500
    return caught.value.reason


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
@pytest.mark.parametrize("on_disk", ["disk", "memory"])
def test_what_is_encoded_is_read_back(codec: str, on_disk: str, tmp_path: Path) -> None:
    data = encoded(codecs={"delta": codec})
    path = tmp_path / "update"
    write_update(path, data)
    update = read_update(path if on_disk == "disk" else data, SPECS, task="task_1", plan="plan-1", base="base-1")
    update.check_finite()
    assert (update.header.weight, update.header.steps, update.sections) == (7, 3, ("delta", "metrics"))
    assert update.header.section("delta").codec == codec
    np.testing.assert_allclose(update.decode("delta"), SECTIONS["delta"], atol=0.02)
    assert update.decode("metrics").tolist() == SECTIONS["metrics"].tolist()
    assert update.decode("metrics").dtype == np.float64 and update.decode("delta").dtype == np.float32


def test_a_crafted_good_update_is_the_encoded_one() -> None:
    assert crafted() == encoded()


@given(st.integers(1, 25), st.sampled_from(["float32", "float16", "int8"]))
def test_chunks_join_to_the_whole(size: int, codec: str) -> None:
    update = read_update(encoded(codecs={"delta": codec}), SPECS)
    chunks = list(update.chunks("delta", size))
    assert [start for start, _ in chunks] == list(range(0, 19, size))
    assert np.concatenate([values for _, values in chunks]).tobytes() == update.decode("delta").tobytes()


def test_reading_needs_memory_for_one_chunk_only(tmp_path: Path) -> None:
    size = 4_000_000
    specs = (SectionSpec.over("delta", Layout.of({"w": (size,)})),)
    path = tmp_path / "update"
    write_update(path, encoded(specs=specs, sections={"delta": np.ones(size, np.float32)}))
    tracemalloc.start()
    try:
        read_update(path, specs).check_finite()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


WRONG_HEADERS: list[tuple[str, Any, str]] = [
    ("format", header(format="coterie-update-2"), "wrong_format"),
    ("no object", [], "wrong_format"),
    ("no JSON", "{", "wrong_format"),
    ("a key twice", '{"format":1,"format":1}', "wrong_format"),
    ("more fields", header(more=1), "wrong_format"),
    ("task no text", header(task=1), "wrong_format"),
    ("task too long", header(task="t" * 129), "wrong_format"),
    ("task with a line feed", header(task="a\nb"), "wrong_format"),
    ("sections no list", header(sections={}), "wrong_format"),
    ("no sections", header(sections=[]), "wrong_format"),
    ("a section no object", header(sections=[1]), "wrong_format"),
    ("a section without codec", header(sections=[{"name": "delta", "length": 19}]), "wrong_format"),
    ("a section twice", header(sections=[header()["sections"][0]] * 2), "wrong_format"),
    ("a section without its tensor", header(sections=section("other")), "wrong_format"),
    ("length no whole number", header(sections=section(length=1.5)), "wrong_format"),
    ("weight text", header(weight="7"), "bad_weight"),
    ("weight a fraction", header(weight=7.5), "bad_weight"),
    ("weight negative", header(weight=-1), "bad_weight"),
    ("weight boolean", header(weight=True), "bad_weight"),
    ("weight null", header(weight=None), "bad_weight"),
    ("weight huge", json.dumps(header(weight=2**53)), "bad_weight"),
    ("weight over the cap", header(weight=2**32), "bad_weight"),
    ("steps negative", header(steps=-1), "bad_steps"),
    ("steps text", header(steps=[]), "bad_steps"),
    ("steps over the cap", header(steps=2**32), "bad_steps"),
    ("another length", header(sections=section(length=20)), "wrong_length"),
    ("unknown codec", header(sections=section(codec="zip")), "unknown_codec"),
    ("float64 for a slice", header(sections=section(codec="float64")), "unknown_codec"),
]


@pytest.mark.parametrize(
    ("head", "code"), [case[1:] for case in WRONG_HEADERS], ids=[case[0] for case in WRONG_HEADERS]
)
def test_wrong_headers_are_refused_by_cause(head: Any, code: str) -> None:
    assert refused(crafted(head)) == code


@pytest.mark.parametrize("name", ["task", "plan", "base"])
def test_another_task_plan_or_base_is_refused(name: str) -> None:
    assert refused(encoded(), **{name: "another"}) == f"wrong_{name}"


def nan_at(position: int, value: float) -> bytes:
    vector = SECTIONS["delta"].copy()
    vector[position] = value
    return vector.tobytes()


@pytest.mark.parametrize(
    ("payloads", "code"),
    [
        ({"delta": b""}, "truncated"),
        ({"delta": b"1" * 75}, "truncated"),
        ({"delta": b"1" * 77}, "too_large"),
        ({"metrics": b"1" * 17}, "too_large"),
        ({"metrics": None}, "wrong_format"),
        ({"more": b"1"}, "wrong_format"),
        ({"delta": SECTIONS["delta"]}, "wrong_format"),
        ({"delta": np.zeros((19, 4), np.uint8)}, "wrong_format"),
        ({"delta": nan_at(18, np.nan)}, "not_finite"),
        ({"delta": nan_at(0, np.inf)}, "not_finite"),
        ({"metrics": np.array([0, -np.inf]).tobytes()}, "not_finite"),
        ({"delta": nan_at(3, 100.5)}, "out_of_range"),
    ],
)
def test_wrong_payloads_are_refused_by_cause(payloads: dict[str, Any], code: str) -> None:
    assert refused(crafted(None, payloads)) == code


def test_sections_must_be_those_of_the_plan() -> None:
    assert refused(encoded(), specs=SPECS[:1]) == "unknown_section"
    assert refused(encoded(specs=SPECS[:1], sections={"delta": SECTIONS["delta"]})) == "missing_section"


def test_the_bad_element_is_named() -> None:
    with pytest.raises(errors.UpdateRefused, match="Section 'delta' holds nan at element 18"):
        read_update(crafted(None, {"delta": nan_at(18, np.nan)}), SPECS).check_finite()
    with pytest.raises(errors.UpdateRefused, match=r"'delta' holds 100.5 at element 3, outside \[-100.0, 100.0\]"):
        read_update(crafted(None, {"delta": nan_at(3, 100.5)}), SPECS).check_finite()


def test_reading_finds_no_values_before_check_finite() -> None:
    assert isinstance(read_update(crafted(None, {"delta": nan_at(18, np.nan)}), SPECS), Update)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (UpdateLimits(max_bytes=100), "too_large"),
        (UpdateLimits(max_header_bytes=100), "wrong_format"),
        (UpdateLimits(max_weight=6), "bad_weight"),
        (UpdateLimits(max_steps=2), "bad_steps"),
    ],
)
def test_limits_are_enforced(limits: UpdateLimits, code: str) -> None:
    assert refused(encoded(), limits=limits) == code


def test_only_the_tasks_codecs_are_taken_and_float32_always() -> None:
    limits = UpdateLimits(codecs=frozenset({"int8"}))
    for codec in ("int8", "float32"):
        read_update(encoded(codecs={"delta": codec}), SPECS, limits=limits).check_finite()
    assert refused(encoded(codecs={"delta": "float16"}), limits=limits) == "unknown_codec"


def test_a_bomb_is_refused_before_it_is_allocated() -> None:
    specs = (SectionSpec.over("delta", Layout.of({"w": (1 << 34,)})),)
    head = header(sections=[{"name": "delta", "codec": "float32", "length": 1 << 34}])
    tracemalloc.start()
    try:
        assert refused(crafted(head, {"metrics": None}), specs=specs) == "truncated"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"weight": -1}, "bad_weight"),
        ({"weight": 1.5}, "bad_weight"),
        ({"steps": True}, "bad_steps"),
        ({"sections": {"delta": SECTIONS["delta"]}}, "missing_section"),
        ({"sections": {**SECTIONS, "more": SECTIONS["delta"]}}, "unknown_section"),
        ({"sections": {**SECTIONS, "delta": SECTIONS["delta"][1:]}}, "wrong_length"),
        ({"sections": {**SECTIONS, "delta": np.full(19, np.nan, np.float32)}}, "not_finite"),
        (
            {"sections": {**SECTIONS, "delta": np.full(19, 1e5, np.float32)}, "codecs": {"delta": "float16"}},
            "out_of_range",
        ),
        ({"codecs": {"delta": "float64"}}, "unknown_codec"),
        ({"codecs": {"delta": "zip"}}, "unknown_codec"),
    ],
)
def test_what_should_not_be_sent_is_not_encoded(change: dict[str, Any], code: str) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        encoded(**change)
    assert caught.value.reason == code


@given(st.data())
def test_a_changed_or_cut_update_is_read_or_refused(data: st.DataObject) -> None:
    original = encoded(codecs={"delta": data.draw(st.sampled_from(["float32", "float16", "int8"]))})
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(original)))
    for source in (bytes(changed), bytes(changed[:cut])):
        try:
            read_update(source, SPECS).check_finite()
        except errors.UpdateRefused as error:
            assert error.reason in REFUSALS


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(header())), json_values)
def test_any_header_field_is_read_or_refused(name: str, value: Any) -> None:
    try:
        read_update(crafted(json.dumps(header(**{name: value}))), SPECS).check_finite()
    except errors.UpdateRefused as error:
        assert error.reason in REFUSALS


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert refused(data) in ("truncated", "wrong_format")


SPEC = SectionSpec.over("half", LAYOUT, ((0, 2), (10, 17)))


def test_a_section_over_slices_has_the_layouts_segments() -> None:
    assert (SPEC.length, SPEC.segments, SPEC.is_extra) == (9, (2, 5, 2), False)
    assert SPECS[1].is_extra and SPECS[1].segments == (2,) and SPECS[1].reduction == "sum"
    for spec in (*SPECS, SPEC):
        assert from_json(SectionSpec, json.loads(json.dumps(to_json(spec))), code="section_invalid") == spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "its name"),
        ({"name": "é"}, "its name"),
        ({"length": 0, "segments": [1]}, "its length must be positive"),
        ({"segments": [2, 5]}, "segments sum to 7, not to its length 9"),
        ({"segments": [10, -1]}, "positive lengths"),
        ({"slices": [[10, 17], [0, 2]]}, "must rise"),
        ({"slices": [[0, 2], [1, 8]]}, "must rise"),
        ({"slices": [[5, 5], [5, 14]]}, "must rise"),
        ({"slices": [[-1, 8]]}, "must not be negative"),
        ({"slices": [[0, 8]]}, "must cover 9"),
        ({"slices": [[0, 9, 10]]}, "/slices"),
        ({"slices": [0, 9]}, "/slices"),
        ({"slices": [["0", "9"]]}, "/slices"),
        ({"length": 9.0}, "/length"),
        ({"length": None}, "/length"),
        ({"reduction": "median"}, "/reduction: Input should be 'weighted_mean' or 'sum'"),
        ({"reduction": ["sum"]}, "/reduction: Input should be 'weighted_mean' or 'sum'"),
        ({"denominator": None}, "a weighted_mean divides"),
        ({"value_range": [1, 0]}, "finite and rise"),
        ({"value_range": [0]}, "/value_range"),
        ({"value_range": [0, 10**400]}, "finite and rise"),
        ({"value_range": ["a", "b"]}, "/value_range"),
        ({"more": 1}, "/more: there is no such field"),
    ],
)
def test_a_section_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words) as caught:
        from_json(SectionSpec, {**to_json(SPEC), **change}, code="section_invalid")
    assert caught.value.reason == "section_invalid"


def test_a_section_stays_inside_its_layout() -> None:
    with pytest.raises(errors.InputError, match="leaves the layout of 19"):
        SectionSpec.over("x", LAYOUT, ((0, 20),))


def test_an_accumulator_holds_sums_and_is_taken_only_where_it_is_expected() -> None:
    sums = {"delta": SECTIONS["delta"].astype(np.float64) * 70, "metrics": SECTIONS["metrics"]}
    data = encoded(sections=sums, kind="accumulator", clients=10, weight=70)
    assert refused(data) == "wrong_kind"
    limits = UpdateLimits(kinds=frozenset({"accumulator"}), max_clients=10)
    update = read_update(data, SPECS, limits=limits)
    update.check_finite()
    assert (update.header.kind, update.header.clients, update.header.weight) == ("accumulator", 10, 70)
    assert update.decode("delta").tolist() == sums["delta"].tolist()
    assert refused(data, limits=UpdateLimits(kinds=frozenset({"accumulator"}), max_clients=9)) == "bad_clients"
    assert refused(encoded(), limits=limits) == "wrong_kind"


def test_an_accumulators_values_lie_within_what_its_weight_allows() -> None:
    limits = UpdateLimits(kinds=frozenset({"accumulator"}))
    sums = {"delta": np.full(19, 7000.5), "metrics": SECTIONS["metrics"]}
    assert refused(encoded(sections=sums, kind="accumulator", clients=2, weight=70), limits=limits) == "out_of_range"


def test_the_codecs_of_an_update_keep_their_state_by_section() -> None:
    options: dict[str, Any] = {**NAMES, "weight": 7, "steps": 3, "specs": SPECS, "codecs": {"delta": "topk:0.1+ef"}}
    first = encode_update(sections=SECTIONS, round=4, **options)
    assert set(first.state) == {"codec/delta/residual", "codec/round"}
    residual = first.state["codec/delta/residual"]
    assert residual.shape == (19,) and np.count_nonzero(residual) == np.count_nonzero(SECTIONS["delta"]) - 2
    silent = {**SECTIONS, "delta": np.zeros(19, np.float32)}
    state = {**first.state, "variate": np.ones(3, np.float32)}
    for rounds, fading in ((5, 1.0), (7, 0.95**2)):
        update = read_update(encode_update(sections=silent, state=state, round=rounds, **options).data, SPECS)
        largest = np.sort(np.abs(residual))[-2:] * fading
        sent = update.decode("delta")
        np.testing.assert_allclose(np.sort(np.abs(sent[sent != 0])), largest, rtol=1e-6)


@pytest.mark.parametrize("codec", ["eden:4", "topk:0.5+ef", "rotate+grid:6", "powersgd:1+ef", "qsgd:4+rice"])
def test_an_update_needs_nothing_but_its_header_to_be_decoded(codec: str) -> None:
    update = read_update(encoded(codecs={"delta": codec}), SPECS)
    update.check_finite()
    assert update.header.section("delta").codec == codec
    chunks = np.concatenate([values for _, values in update.chunks("delta", 5)])
    assert chunks.tobytes() == update.decode("delta").tobytes()
    assert np.linalg.norm(chunks - SECTIONS["delta"]) < np.linalg.norm(SECTIONS["delta"])
