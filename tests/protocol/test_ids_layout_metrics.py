"""Ids sort by time; a layout is a bijection; metric sums are a commutative monoid."""

import re
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol import ids
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.metrics import MetricSums

LAYOUT = Layout.of({"0.weight": (3, 2), "0.bias": (3,), "scale": ()})

shapes = st.dictionaries(
    st.text(st.characters(codec="ascii", min_codepoint=97, max_codepoint=122), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    min_size=1,
    max_size=5,
)
sums = st.dictionaries(st.sampled_from(["loss", "examples", "hits"]), st.integers(-(2**40), 2**40)).map(
    lambda values: MetricSums({name: float(value) for name, value in values.items()})
)


def test_an_id_is_a_uuid_version_7_with_its_prefix() -> None:
    made = ids.new_id(ids.TASK, now_ns=1_645_557_742_000_000_000, entropy=bytes.fromhex("18c4dc0c0c07398f"))
    assert made == "task_017f22e279b070009" + "8c4dc0c0c07398f"  # RFC 9562 appendix A.6, with rand_a a clock
    parsed = uuid.UUID(made.removeprefix("task_"))
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert re.fullmatch(ids.pattern(ids.TASK), made)


def test_ids_differ_and_sort_by_time() -> None:
    assert len({ids.new_id(ids.DEVICE) for _ in range(2000)}) == 2000
    by_time = [ids.new_id(ids.EXPERIMENT, now_ns=ns) for ns in (10**18, 10**18 + 300, 10**18 + 10**6, 2 * 10**18)]
    assert by_time == sorted(by_time)


@pytest.mark.parametrize("prefix", ["", "x", "Exp", "with_underscore", "toolongprefix", "e1"])
def test_a_prefix_of_another_form_is_refused(prefix: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        ids.new_id(prefix)
    assert caught.value.reason == "prefix_invalid"


@given(shapes, st.integers(0, 2**31))
def test_unflatten_inverts_flatten_bit_for_bit(shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    layout = Layout.of(shapes)
    bits = np.random.default_rng(seed).integers(0, 2**32, layout.size, np.uint32)
    vector = bits.view(np.float32)
    tensors = layout.unflatten(vector)
    assert {name: tensor.shape for name, tensor in tensors.items()} == shapes
    assert layout.flatten(tensors).view(np.uint32).tolist() == bits.tolist()
    assert from_json(Layout, to_json(layout), code="layout_invalid") == layout


def test_slices_cover_the_vector_in_order() -> None:
    assert dict(LAYOUT.slices) == {"0.weight": (0, 6), "0.bias": (6, 9), "scale": (9, 10)}
    assert dict(LAYOUT.offsets) == {"0.weight": 0, "0.bias": 6, "scale": 9}
    assert list(LAYOUT.shapes) == list(LAYOUT.names) == list(LAYOUT.slices)
    assert (LAYOUT.size, LAYOUT.names) == (10, ("0.weight", "0.bias", "scale"))


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        (None, (6, 3, 1)),
        (((0, 10),), (6, 3, 1)),
        (((0, 6),), (6,)),
        (((2, 8),), (4, 2)),
        (((0, 2), (4, 6), (8, 10)), (2, 2, 1, 1)),
        ((), ()),
    ],
)
def test_segments_are_cut_at_slices_and_tensors(slices: Any, expected: tuple[int, ...]) -> None:
    assert LAYOUT.segments(slices) == expected


def test_the_digest_tells_layouts_apart() -> None:
    others = [
        Layout(LAYOUT.tensors[::-1]),
        Layout.of({"0.weight": (2, 3), "0.bias": (3,), "scale": ()}),
        Layout.of({"0.weight": (3, 2), "0.bias": (3,), "scales": ()}),
    ]
    assert len({layout.digest for layout in (LAYOUT, *others)}) == 4
    assert from_json(Layout, to_json(LAYOUT), code="layout_invalid").digest == LAYOUT.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": None}, "missing, first 'scale'"),
        ({"more": np.zeros(1, np.float32)}, "not in the layout, first 'more'"),
        ({"0.bias": np.zeros((3, 1), np.float32)}, r"'0.bias' must be float32 \[3\]; got float32 \[3, 1\]"),
        ({"0.bias": np.zeros(3)}, r"'0.bias' must be float32 \[3\]; got float64"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: dict[str, Any], words: str) -> None:
    tensors: dict[str, Any] = {**LAYOUT.unflatten(np.zeros(10, np.float32)), **change}
    with pytest.raises(errors.InputError, match=words) as caught:
        LAYOUT.flatten({name: tensor for name, tensor in tensors.items() if tensor is not None})
    assert caught.value.reason == "layout_mismatch"


def test_a_vector_that_does_not_fit_is_refused() -> None:
    for vector in (np.zeros(9, np.float32), np.zeros(10), np.zeros((10, 1), np.float32)):
        with pytest.raises(errors.InputError, match="float32 vector of 10 elements"):
            LAYOUT.unflatten(vector)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"tensors": []},
        {"tensors": [1]},
        {"tensors": [{"name": "a", "shape": [0]}]},
        {"tensors": [{"name": "a", "shape": [-1]}]},
        {"tensors": [{"name": "a", "shape": [True]}]},
        {"tensors": [{"name": "a", "shape": [1.5]}]},
        {"tensors": [{"name": "a", "shape": [2**60]}]},
        {"tensors": [{"name": "a", "shape": [2**30, 2**30]}]},
        {"tensors": [{"name": "a", "shape": [1] * 9}]},
        {"tensors": [{"name": "", "shape": [1]}]},
        {"tensors": [{"name": "a" * 257, "shape": [1]}]},
        {"tensors": [{"name": "a", "shape": [1], "more": 1}]},
        {"tensors": [{"name": "a", "shape": [1]}, {"name": "a", "shape": [2]}]},
    ],
)
def test_a_malformed_layout_is_refused(value: Any) -> None:
    with pytest.raises(errors.InputError) as caught:
        from_json(Layout, value, code="layout_invalid")
    assert caught.value.reason == "layout_invalid"


def test_a_tensor_knows_its_size() -> None:
    assert (Tensor("a", (2, 3)).size, Tensor("b", ()).size) == (6, 1)


@given(sums, sums, sums)
def test_metric_sums_are_a_commutative_monoid(a: MetricSums, b: MetricSums, c: MetricSums) -> None:
    names = ("loss", "examples", "hits")

    def vector(value: MetricSums) -> list[float]:
        return value.to_vector(names).tolist()

    assert vector(a.merge(b)) == vector(b.merge(a))
    assert vector(a.merge(b).merge(c)) == vector(a.merge(b.merge(c)))
    assert a.merge(MetricSums()) == a == MetricSums().merge(a)
    assert vector(MetricSums.from_vector(names, a.to_vector(names))) == vector(a)


def test_means_divide_by_examples_and_never_give_nan() -> None:
    assert MetricSums({"loss": 6.0, "hits": 3, "examples": 4}).means() == {"loss": 1.5, "hits": 0.75}
    assert MetricSums({"loss": 0.0, "examples": 0}).means() == {}
    assert MetricSums().means() == {}
    assert MetricSums().add({"loss": 1}).add({"loss": 2, "examples": 2}).means() == {"loss": 1.5}


def test_metric_sums_refuse_nan_and_wrong_lengths() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(errors.InputError, match="'loss'"):
            MetricSums({"loss": bad})
    with pytest.raises(errors.InputError, match="2 metric names"):
        MetricSums.from_vector(("a", "b"), np.zeros(3))
