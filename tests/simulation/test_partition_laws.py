"""The laws of every partitioner, and what each promises beyond them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.errors import ConfigurationError
from coterie.simulation import VirtualClients
from coterie.simulation.partition import (
    LabelNoise,
    Noise,
    Partition,
    Turns,
    continuous,
    dirichlet,
    dirichlet_clients,
    iid,
    natural,
    natural_groups,
    pathological,
    periods,
    quantity,
    shards,
    split,
)
from coterie.simulation.partition.quantity import Law
from coterie.simulation.partition.skew import Skew

Labels = NDArray[np.int64]
CLASSES = 4
Make = Callable[[Labels, int, int], Partition]


def by_law(law: Law) -> Make:
    return lambda labels, clients, seed: quantity(len(labels), clients, law=law, seed=seed, strength=0.5, minimum=1)


PARTITIONERS: dict[str, Make] = {
    "iid": lambda labels, clients, seed: iid(len(labels), clients, seed=seed),
    "periods": lambda labels, clients, seed: periods(np.arange(len(labels))[::-1], clients),
    "continuous": lambda labels, clients, seed: continuous(labels, clients, strictness=0.5, seed=seed),
    "dirichlet": lambda labels, clients, seed: dirichlet(labels, clients, alpha=0.3, seed=seed),
    "dirichlet, drawn again": lambda labels, clients, seed: dirichlet(
        labels, clients, alpha=100, seed=seed, shortage="redraw"
    ),
    "dirichlet_clients": lambda labels, clients, seed: dirichlet_clients(labels, clients, alpha=1, seed=seed),
    "shards": lambda labels, clients, seed: shards(labels, clients, seed=seed),
    "pathological": lambda labels, clients, seed: pathological(labels, clients, classes=2, seed=seed),
    "natural": lambda labels, clients, seed: natural(np.arange(len(labels)) % clients),
    "natural_groups": lambda labels, clients, seed: natural_groups(np.arange(len(labels)) // 2, clients, seed=seed),
    **{f"quantity, {law}": by_law(law) for law in get_args(Law)},
}
LEAVES_OUT = {"pathological"}


def labels_of(rows: int, seed: int = 0) -> Labels:
    return np.random.Generator(np.random.PCG64(seed)).permutation(np.arange(rows) % CLASSES)


@pytest.mark.parametrize("name", PARTITIONERS)
@settings(max_examples=25)
@given(rows=st.integers(60, 200), clients=st.integers(1, 12), seed=st.integers(0, 2**40))
def test_every_row_has_one_client_and_every_client_a_row(name: str, rows: int, clients: int, seed: int) -> None:
    labels = labels_of(rows)
    found = PARTITIONERS[name](labels, clients, seed)
    taken = np.concatenate(found)
    assert len(found) == clients and min(found.sizes) >= 1
    assert len(np.unique(taken)) == len(taken)
    assert name in LEAVES_OUT or sorted(taken.tolist()) == list(range(rows))
    assert all((np.diff(part) > 0).all() and part.dtype == np.int64 for part in found)
    again = PARTITIONERS[name](labels, clients, seed)
    assert again.sha256 == found.sha256 and found.manifest() == again.manifest()


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_manifest_tells_everything_and_reads_back(name: str, tmp_path: Path) -> None:
    labels = labels_of(120)
    found = PARTITIONERS[name](labels, 6, 3).labelled(labels)
    told = json.loads(found.write(tmp_path).read_text())
    assert told == json.loads(json.dumps(found.manifest()))
    assert told["method"] == found.method and told["clients"] == 6 and sum(told["sizes"]) + told["left_out"] == 120
    assert [sum(row) for row in told["counts"]] == told["sizes"] and told["classes"] == ["0", "1", "2", "3"]
    assert len(told["sha256"]) == 64 and 0 <= told["skew"]["mean_js"] <= 1 and 0 <= told["skew"]["mean_emd"] <= 2
    back = Partition.read(tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(back, found, strict=True))
    assert back.manifest()["parameters"] == told["parameters"]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_more_clients_than_rows_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PARTITIONERS[name](labels_of(4), 9, 0) if name != "natural" else natural(np.arange(3), minimum=2)
    assert caught.value.reason == "partition_empty"


IMPOSSIBLE: list[Callable[[Labels], object]] = [
    lambda y: dirichlet(y, 3, alpha=0, seed=0),
    lambda y: dirichlet(y, 3, alpha=float("nan"), seed=0),
    lambda y: dirichlet(y, 12, alpha=1e-3, seed=0, minimum=10, shortage="redraw"),
    lambda y: dirichlet(y, 3, alpha=1, seed=0, shortage=cast(Any, "sometimes")),
    lambda y: dirichlet_clients(y, 3, alpha=-1, seed=0),
    lambda y: dirichlet_clients(y, 3, alpha=1, seed=0, sizes=(1, 2)),
    lambda y: dirichlet_clients(y, 2, alpha=1, seed=0, sizes=(120, 1)),
    lambda y: pathological(y, 3, classes=5, seed=0),
    lambda y: shards(y, 3, seed=0, per_client=0),
    lambda y: quantity(120, 3, law=cast(Any, "other"), seed=0),
    lambda y: quantity(120, 3, law="linear", seed=0, strength=0),
    lambda y: continuous(np.full(120, np.nan), 3, strictness=1, seed=0),
    lambda y: continuous(y, 3, strictness=2, seed=0),
    lambda y: natural(y, minimum=0),
    lambda y: iid(120, 0, seed=0),
    lambda y: Turns(feature="x", turns=3),
    lambda y: LabelNoise(label="y", classes=1, high=0.5, seed=0),
    lambda y: LabelNoise(label="y", classes=4, low=0.6, high=0.5, seed=0),
    lambda y: dirichlet(np.eye(4)[y], 3, alpha=1, seed=0),
    lambda y: dirichlet(np.where(y == 1, np.nan, y), 3, alpha=1, seed=0),
    lambda y: natural(np.where(y == 1, np.nan, y)),
    lambda y: iid(120, 3, seed=-1),
    lambda y: iid(120, 3, seed=cast(Any, None)),
    lambda y: quantity(120, 50, law="square", seed=0, strength=300, minimum=1),
    lambda y: Noise(feature="x", variance=-1.0, seed=0),
    lambda y: split({"y": y}, iid(120, 2, seed=0).then(LabelNoise(label="y", classes=2, high=0.5, seed=0))),
    lambda y: split({"y": np.tile(y, 2)}, iid(120, 2, seed=0)),
    lambda y: split({"y": y[:100]}, iid(120, 2, seed=0)),
    lambda y: iid(120, 2, seed=0).draw("split.xyz"),
    lambda y: Partition.of("own", 5, [[0, 1], [1, 2]]),
    lambda y: Partition.of("own", 5, [[0, 5]]),
    lambda y: Partition.of("own", 5, [[0, 1]]).labelled(np.zeros(4)),
    lambda y: split({"x": y}, iid(120, 2, seed=0).then(Turns(feature="image"))),
    lambda y: split({"x": y}, iid(120, 2, seed=0).then(Turns(feature="x"))),
    lambda y: dirichlet(y, 3, alpha=1.7e308, seed=0),
    lambda y: dirichlet_clients(y, 3, alpha=1.7e308, seed=0),
    lambda y: continuous(np.where(y == 1, 1e308, -1e308), 3, strictness=1, seed=0),
    lambda y: dirichlet(np.where(y == 1, np.datetime64("NaT"), np.datetime64("2020")), 3, alpha=1, seed=0),
    lambda y: periods(np.where(y == 1, np.datetime64("NaT"), np.datetime64("2020")), 3),
    lambda y: dirichlet(np.where(y == 1, np.nan, y).astype(complex), 3, alpha=1, seed=0),
    lambda y: natural(np.where(y == 1, np.nan, y).astype(object)),
    lambda y: natural(np.array(["a", None] * 60, object)),
    lambda y: periods(np.array([1, "a"] * 60, object), 2),
    lambda y: dirichlet(cast(Any, [[1], [2, 3]]), 1, alpha=1, seed=0),
    lambda y: continuous(np.array(["a", "b"] * 60), 3, strictness=1, seed=0),
    lambda y: continuous(y * 1j, 3, strictness=1, seed=0),
    lambda y: split({"y": y.astype(str)}, iid(120, 2, seed=0).then(LabelNoise(label="y", classes=4, high=0.5, seed=0))),
]
WRONG: Any = "0.5"
WRONG_KINDS: list[Callable[[Labels], object]] = [
    lambda y: iid(cast(Any, y), 3, seed=0),
    lambda y: iid(120, cast(Any, 3.0), seed=0),
    lambda y: iid(120, WRONG, seed=0),
    lambda y: iid(120, 3, seed=True),
    lambda y: dirichlet(y, 3, alpha=WRONG, seed=0),
    lambda y: dirichlet(y, 3, alpha=cast(Any, np.array([0.5])), seed=0),
    lambda y: dirichlet(y, 3, alpha=1, seed=0, minimum=cast(Any, 2.5)),
    lambda y: dirichlet_clients(y, cast(Any, 3.0), alpha=1, seed=0),
    lambda y: dirichlet_clients(y, 2, alpha=1, seed=0, sizes=cast(Any, [1.5, 9])),
    lambda y: dirichlet_clients(y, 2, alpha=1, seed=0, sizes=cast(Any, 60)),
    lambda y: shards(y, 3, seed=0, per_client=cast(Any, 2.0)),
    lambda y: pathological(y, 3, classes=cast(Any, 2.5), seed=0),
    lambda y: quantity(120, 3, law="linear", seed=0, strength=WRONG),
    lambda y: quantity(120, 3, law="linear", seed=0, minimum=WRONG),
    lambda y: continuous(y, 3, strictness=WRONG, seed=0),
    lambda y: natural(y, minimum=WRONG),
    lambda y: Noise(feature="x", variance=WRONG, seed=0),
    lambda y: LabelNoise(label="y", classes=4, high=WRONG, seed=0),
    lambda y: LabelNoise(label="y", classes=WRONG, high=0.5, seed=0),
    lambda y: Turns(feature="x", turns=WRONG),
]


@pytest.mark.parametrize("make", IMPOSSIBLE)
def test_what_cannot_be_is_refused_by_name(make: Callable[[Labels], object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(labels_of(120))
    assert caught.value.reason == "partition_invalid"


@pytest.mark.parametrize("make", WRONG_KINDS)
def test_arguments_of_the_wrong_kind_are_refused_by_their_name(make: Callable[[Labels], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"must be (a number|a whole number|one for each)") as caught:
        make(labels_of(120))
    assert caught.value.reason == "partition_invalid"


@pytest.mark.parametrize("make", [lambda: dirichlet(np.array([]), 2, alpha=1, seed=0), lambda: natural(np.array([]))])
def test_no_rows_at_all_leave_a_client_empty(make: Callable[[], Partition]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.reason == "partition_empty"


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    labels, two = labels_of(60), cast(Any, np.int64(2))
    made = dirichlet(labels, two, alpha=cast(Any, np.float32(0.5)), seed=two, minimum=two).then(
        Noise(feature="x", variance=cast(Any, np.float32(0.5)), seed=two)
    )
    made.write(tmp_path)
    same = dirichlet(labels, 2, alpha=0.5, seed=2, minimum=2).then(Noise(feature="x", variance=0.5, seed=2))
    assert made.manifest() == same.manifest() and Partition.read(tmp_path).changes == same.changes


@pytest.mark.parametrize("parts", [[[0], []], []])
def test_a_partition_of_ones_own_leaves_nobody_empty(parts: list[list[int]]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Partition.of("own", 3, parts)
    assert caught.value.reason == "partition_empty"


def test_the_exponential_law_without_a_minimum_is_refused_where_a_client_gets_nothing() -> None:
    with pytest.raises(ConfigurationError) as caught:
        quantity(1000, 50, law="exponential", seed=0)
    assert caught.value.reason == "partition_empty"
    assert min(quantity(1000, 50, law="exponential", seed=0, minimum=2).sizes) == 2


def test_sizes_follow_their_law() -> None:
    assert quantity(10_000, 4, law="linear", seed=0).sizes == (1000, 2000, 3000, 4000)
    assert quantity(3000, 4, law="square", seed=0).sizes == (100, 400, 900, 1600)
    sizes = np.array(quantity(100_000, 5, law="exponential", seed=0).sizes)
    assert sizes[1:] / sizes[:-1] == pytest.approx(np.e, rel=1e-2)


def test_shards_are_the_pathological_split_of_the_first_paper() -> None:
    found = shards(np.repeat(np.arange(10), 6000), 100, seed=0)
    assert set(found.sizes) == {600}
    assert (found.counts > 0).sum(axis=1).max() <= 2


def test_pathological_clients_have_exactly_so_many_classes() -> None:
    labels = labels_of(4000)
    found = pathological(labels, 10, classes=3, seed=1)
    assert set((found.counts > 0).sum(axis=1).tolist()) == {3}
    assert found.manifest()["left_out"] == 0
    few = pathological(labels, 2, classes=1, seed=1)
    assert few.manifest()["left_out"] == 2000


def test_the_two_conventions_of_dirichlet_differ_in_sizes() -> None:
    labels = labels_of(8000)
    assert len(set(dirichlet(labels, 10, alpha=0.3, seed=0).sizes)) > 5
    assert set(dirichlet_clients(labels, 10, alpha=0.3, seed=0).sizes) == {800}
    assert dirichlet_clients(labels, 3, alpha=1, seed=0, sizes=(10, 200, 30)).sizes == (10, 200, 30)


def test_alpha_of_both_conventions_goes_from_one_class_to_even() -> None:
    labels = labels_of(8000)
    for make in (dirichlet, dirichlet_clients):
        skews = [make(labels, 10, alpha=alpha, seed=0).skew.mean_emd for alpha in (0.01, 1, 1000)]
        assert skews == sorted(skews, reverse=True) and skews[0] > 1.0 and skews[-1] < 0.1


def test_a_draw_that_does_not_fit_is_drawn_again() -> None:
    labels = labels_of(400)
    sizes = [dirichlet(labels, 5, alpha=0.5, seed=seed, minimum=20, shortage="redraw").sizes for seed in range(5)]
    assert min(map(min, sizes)) >= 20


def test_periods_keep_the_order_of_time() -> None:
    times = np.array(["2024-03-01", "2024-01-01", "2024-02-01", "2024-01-15"], "datetime64[D]")
    assert [part.tolist() for part in periods(times, 2)] == [[1, 3], [0, 2]]


def test_strictness_orders_a_column() -> None:
    values = np.random.Generator(np.random.PCG64(0)).normal(size=3000)
    spread = [
        np.std([values[part].mean() for part in continuous(values, 10, strictness=strictness, seed=1)])
        for strictness in (0, 0.5, 1)
    ]
    assert spread[0] < 0.2 < spread[1] < spread[2]


def test_owners_keep_their_names_and_stay_whole() -> None:
    owners = np.array(["ann", "bob", "ann", "cid", "bob", "ann"])
    found = natural(owners, minimum=2)
    assert found.names == ("ann", "bob") and found.manifest()["left_out"] == 1
    assert [part.tolist() for part in found] == [[0, 2, 5], [1, 4]]
    groups = natural_groups(owners, 2, seed=0)
    holders = [{str(owners[row]) for row in part.tolist()} for part in groups]
    assert holders[0] | holders[1] == {"ann", "bob", "cid"} and not holders[0] & holders[1]


def test_noise_grows_from_client_to_client() -> None:
    arrays = {"x": np.zeros((4000, 3), np.float32), "y": np.zeros(4000, np.int32)}
    noisy = split(arrays, iid(4000, 4, seed=0).then(Noise(feature="x", variance=4.0, seed=1)))
    assert [float(rows["x"].var()) for rows in noisy] == pytest.approx([1, 2, 3, 4], rel=0.1)
    assert noisy[0]["x"].dtype == np.float32 and not noisy[0]["y"].any()


def test_noise_on_pixels_stays_pixels() -> None:
    arrays = {"x": np.full((40, 2), 250, np.uint8)}
    (rows,) = split(arrays, iid(40, 1, seed=0).then(Noise(feature="x", variance=400.0, seed=1)))
    assert rows["x"].dtype == np.uint8 and rows["x"].max() == 255 and rows["x"].min() > 150


def test_images_are_turned_by_quarters() -> None:
    image = np.arange(9).reshape(3, 3)
    turned = split({"x": np.stack([image] * 4)}, periods(np.arange(4), 4).then(Turns(feature="x")))
    assert all(np.array_equal(rows["x"][0], np.rot90(image, k)) for k, rows in enumerate(turned))
    halves = split({"x": np.stack([image] * 2)}, periods(np.arange(2), 2).then(Turns(feature="x", turns=2)))
    assert np.array_equal(halves[1]["x"][0], image[::-1, ::-1])


def test_wrong_labels_come_at_their_rates() -> None:
    labels = labels_of(9000).astype(np.int32)
    noise = LabelNoise(label="y", classes=CLASSES, low=0.1, high=0.5, seed=2)
    found = iid(9000, 3, seed=0)
    wrong = [
        float((rows["y"] != labels[part]).mean())
        for rows, part in zip(split({"y": labels}, found.then(noise)), found, strict=True)
    ]
    assert wrong == pytest.approx([0.1, 0.3, 0.5], abs=0.03)
    assert found.then(noise).manifest()["changes"] == [noise.to_json()]
    assert found.then(noise).sha256 == found.sha256


def test_clients_that_are_made_when_they_are_chosen_have_the_same_rows() -> None:
    arrays = {"x": np.ones((60, 2), np.float32), "y": labels_of(60).astype(np.int32)}
    parts = iid(60, 4, seed=0).then(
        Noise(feature="x", variance=1.0, seed=1), LabelNoise(label="y", classes=CLASSES, high=0.9, seed=2)
    )
    lazily, at_once = VirtualClients.of(arrays, parts), split(arrays, parts)
    for client, rows in enumerate(at_once):
        again = cast(dict[str, NDArray[Any]], lazily[client])
        assert all(np.array_equal(again[name], rows[name]) for name in arrays)


def test_skew_in_numbers_that_can_be_checked_by_hand() -> None:
    even = Skew.of(np.array([[5, 5], [10, 10]]), (10, 20))
    assert even.mean_emd == even.mean_js == 0 and even.size_deviation == pytest.approx(1 / 3)
    apart = Skew.of(np.array([[10, 0], [0, 10]]), (10, 10))
    assert apart.emd == (1.0, 1.0) and apart.size_deviation == 0
    # H(3/4, 1/4) - H(1/2, 1/2) / 2, in bits
    assert apart.js == pytest.approx((0.811278 - 0.5,) * 2, abs=1e-6)


def test_the_drawing_is_svg_with_a_bar_for_every_class_of_every_client(tmp_path: Path) -> None:
    labels = labels_of(200)
    found = dirichlet(labels, 7, alpha=0.5, seed=0)
    root = ElementTree.fromstring(found.draw(tmp_path / "deep" / "p.svg").read_text())
    bars = [rect for rect in root if rect.tag.endswith("rect") and float(rect.get("x", "9999")) < 820]
    assert len(bars) == int((found.counts > 0).sum())
    total = sum(float(bar.get("height", "0")) for bar in bars if bar.get("width") != "100%")
    assert total == pytest.approx(300 * 200 / max(found.sizes), rel=1e-3)


def test_the_drawing_with_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` draws other formats than SVG")
    assert iid(30, 3, seed=0).draw(tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("file", ["partition.json", "rows.safetensors"])
def test_a_partition_that_was_changed_on_disk_is_refused(file: str, tmp_path: Path) -> None:
    iid(30, 3, seed=0).write(tmp_path)
    iid(30, 3, seed=1).write(tmp_path / "other")
    (tmp_path / file).write_bytes((tmp_path / "other" / file).read_bytes())
    with pytest.raises(ConfigurationError) as caught:
        Partition.read(tmp_path)
    assert caught.value.reason == "partition_damaged"
    with pytest.raises(ConfigurationError):
        Partition.read(tmp_path / "absent")


def test_changes_are_read_back_and_make_the_same_rows(tmp_path: Path) -> None:
    """A partition that forgot them would give clean rows under a manifest that tells of noise."""
    arrays = {"x": np.ones((60, 3, 3), np.float32), "y": labels_of(60).astype(np.int32)}
    made = iid(60, 4, seed=0).then(
        Noise(feature="x", variance=1.0, seed=1),
        Turns(feature="x"),
        LabelNoise(label="y", classes=CLASSES, high=0.9, seed=2),
    )
    made.write(tmp_path)
    found = Partition.read(tmp_path)
    assert found.changes == made.changes and found.manifest()["changes"] == made.manifest()["changes"]
    for one, other in zip(split(arrays, made), split(arrays, found), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in arrays)
    told = json.loads((tmp_path / "partition.json").read_text())
    (tmp_path / "partition.json").write_text(json.dumps({**told, "changes": [{"change": "my own"}]}))
    with pytest.raises(ConfigurationError, match="my own"):
        Partition.read(tmp_path)


def test_a_split_is_a_sequence_of_rows() -> None:
    found = iid(10, 3, seed=0)
    assert len(found[1:]) == 2 and np.array_equal(found[0], next(iter(found)))
    given: Any = [np.array([1]), np.array([0, 2])]
    assert [rows["y"].tolist() for rows in split({"y": np.arange(3)}, given)] == [[1], [0, 2]]
