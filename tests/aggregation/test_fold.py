"""One fold: its laws for every kind of rule, and the same version whoever brings the updates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.accumulate import AccumulatorHeader, accumulate_updates
from coterie.aggregation.accumulator import EITHER
from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.fold.choose import open_fold
from coterie.aggregation.fold.fold import Fold, Folded, at_once
from coterie.aggregation.fold.part import CountedUpdate, LocalUpdate
from coterie.aggregation.fold.usable import CountTerms, count_terms, usable
from coterie.aggregation.plan.manifest import METRIC_RANGE, Manifest, NamedRule, Training
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.reducers import reducer
from coterie.aggregation.server_optimizers import server_optimizer
from coterie.aggregation.update_files import UpdateFile
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.conversion import to_json
from coterie.protocol.layout import Layout
from coterie.protocol.privacy import UserLevel
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import read_file, write_file
from coterie.protocol.update import encode_update, read_update
from coterie.simulation.collect import Collector, in_the_open
from coterie.simulation.shares import WorkShares
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained

LAYOUT = Layout.of({"w": (6, 8), "b": (8,), "scale": ()})
MANIFEST = Manifest(
    name="m",
    shape="external",
    schema=DataSchema((Feature(name="x"),), Label(name="y")),
    layout=LAYOUT,
    sections=(SectionSpec.over("delta", LAYOUT), SectionSpec.extra("metrics", 2, value_range=METRIC_RANGE)),
    hyper={},
    training=Training(batch_size=1),
    algorithm=NamedRule("fedavg", {}),
    optimizer=NamedRule("external", {}),
    stages=(),
)
BASE = np.linspace(-1, 1, LAYOUT.size).astype(np.float32)
MOMENTUM = server_optimizer("sgd", {"lr": 1.0, "momentum": 0.9})
PLAIN = server_optimizer("sgd", {"lr": 1.0})
NOISE = CentralNoise(
    privacy=UserLevel(clip=1.0, delta=1e-5, noise_multiplier=0.5), round=1, rounds=3, expected=4, seed=b"s" * 32
)
Slices = tuple[tuple[int, int], ...]
PARTS: tuple[Slices, ...] = ((), ((0, 48),), ((48, 56),), ((0, 4), (8, 12), (50, 57)))


def vector(seed: int) -> Any:
    return np.random.Generator(np.random.PCG64(seed)).normal(size=LAYOUT.size).astype(np.float32)


def held(values: Any, slices: Slices) -> Any:
    return np.concatenate([values[a:b] for a, b in slices]) if slices else values


def made(seed: int, slices: Slices = ()) -> LocalUpdate:
    return LocalUpdate(
        task=f"task-{seed:03}",
        weight=1 + seed % 7,
        sections={"delta": held(vector(seed), slices), "metrics": np.array([1.0 + seed % 7, 0.5])},
        slices={"delta": slices} if slices else {},
    )


KINDS: Mapping[str, Callable[[], Fold[Any, CountedUpdate]]] = {
    "mean": lambda: open_fold(MANIFEST, reducer("mean")),
    "norm_bound": lambda: open_fold(MANIFEST, reducer("norm_bound(3)")),
    "median": lambda: open_fold(MANIFEST, reducer("median")),
    "krum": lambda: open_fold(MANIFEST, reducer("krum(1)")),
    "noised": lambda: open_fold(MANIFEST, reducer("mean"), central=NOISE),
}


def same(left: Folded, right: Folded) -> None:
    for name, values in left.sections.items():
        # A unit of float32 beside the size of the numbers that were added.
        np.testing.assert_allclose(values, right.sections[name], rtol=2**-24, atol=2**-46)
    assert (left.clients, left.weight, left.metrics) == (right.clients, right.weight, right.metrics)
    assert left.untrained.keys() == right.untrained.keys()
    assert all(np.array_equal(mask, right.untrained[name]) for name, mask in left.untrained.items())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(st.lists(st.integers(0, 200), min_size=5, max_size=9, unique=True), st.data())
def test_a_fold_is_a_commutative_monoid(kind: str, seeds: list[int], data: st.DataObject) -> None:
    fold, terms = KINDS[kind](), CountTerms(exponent=0.5)
    sums = kind in ("mean", "norm_bound")
    parts = [
        usable(made(seed, data.draw(st.sampled_from(PARTS)) if sums else ()), terms, lag=data.draw(st.integers(0, 2)))
        for seed in seeds
    ]

    def single(part: CountedUpdate) -> Any:
        return fold.add(fold.init(), (part,), at_once)

    def result(state: Any) -> Folded:
        return fold.result(state, {}, at_once)

    def merged(some: Sequence[CountedUpdate]) -> Any:
        state = fold.init()
        for part in some:
            state = fold.merge(state, single(part))
        return state

    whole = result(fold.add(fold.init(), parts, at_once))
    same(whole, result(merged(parts)))
    same(whole, result(merged(data.draw(st.permutations(parts)))))
    same(whole, result(fold.merge(merged(parts[:2]), fold.merge(merged(parts[2:4]), merged(parts[4:])))))
    same(whole, result(fold.merge(merged(parts), fold.init())))
    with pytest.raises(errors.UpdateRefused) as caught:
        fold.add(merged(parts), (parts[0],), at_once)
    assert caught.value.reason == "duplicate_task"


def file_of(folder: Path, seed: int, codec: str, slices: Slices, weight: int) -> UpdateFile:
    data = encode_update(
        task=f"task-{seed:03}",
        plan=MANIFEST.id,
        base=sha256_hex((folder / "base").read_bytes()),
        weight=weight,
        steps=1,
        specs=MANIFEST.sections,
        sections={"delta": held(vector(seed), slices), "metrics": np.array([weight, 0.5 * weight], np.float64)},
        codecs={"delta": codec},
        slices={"delta": slices} if slices else {},
    ).data
    path = folder / f"{seed}.update"
    path.write_bytes(data)
    return UpdateFile(f"task-{seed:03}", path, sha256_hex(data))


def on_a_coordinator(folder: Path, files: Sequence[UpdateFile], rule: str) -> Any:
    result = aggregate_updates(
        MANIFEST, base=folder / "base", updates=files, server=MOMENTUM, server_state=None, out=folder / "v", rule=rule
    )
    return LAYOUT.flatten(read_file(Path(result.weights)))


def below_an_edge(folder: Path, files: Sequence[UpdateFile], rule: str) -> Any:
    cut, digest = max(len(files) // 2, 1), sha256_hex((folder / "base").read_bytes())
    nodes: list[UpdateFile] = []
    for name, some in (("left", files[:cut]), ("right", files[cut:])):
        usable_ones = [one for one in some if read_update(one.path, MANIFEST.sections).header.weight]
        if usable_ones:
            answer = AccumulatorHeader(task=name, base=digest, reducer=rule)
            done = accumulate_updates(MANIFEST, answer, updates=some, out=folder / name)
            nodes.append(UpdateFile(name, Path(done.path), done.sha256))
    return on_a_coordinator(folder, nodes, rule)


def simulated(folder: Path, files: Sequence[UpdateFile], rule: str, threads: int) -> Any:
    versions, chosen = Versions(LAYOUT, None), reducer(rule)
    base = versions.add(BASE.copy())
    terms = replace(count_terms(chosen, weight_cap=None), keep=True)
    shares = WorkShares(threads)
    collector = Collector(MANIFEST, base, open_fold(MANIFEST, chosen), in_the_open(MANIFEST, terms, base), shares)
    for number, file in enumerate(files):
        data = file.path.read_bytes()
        weight = read_update(data, MANIFEST.sections).header.weight
        collector.add(Trained(number=number, task=file.task, weight=weight, steps=1, size=len(data), update=data))
    made = collector.result(versions, MOMENTUM, {})
    shares.close()
    return versions.vector(made.version)


@settings(max_examples=25)
@given(
    st.sampled_from(["mean", "norm_bound(3)", "median", "trimmed_mean(1)"]),
    st.lists(
        st.tuples(
            st.integers(0, 200),
            st.sampled_from(["float32", "int8", "eden:4", "topk:0.3+ef"]),
            st.sampled_from(PARTS),
            st.integers(0, 50),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda one: one[0],
    ),
    st.data(),
)
def test_files_arrays_and_accumulators_make_one_version(rule: str, clients: list[Any], data: st.DataObject) -> None:
    """Over rules, parts of the model and updates of no weight; over methods, engines and masks see `test_hosts`."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_file(folder / "base", LAYOUT.unflatten(BASE))
        here = [one for one in clients if data.draw(st.booleans())]
        files = [file_of(folder, *one) for one in here]
        sums = reducer(rule).needs == "sums"
        count = sum(bool(weight) and (sums or not slices) for _, _, slices, weight in here)
        if count < reducer(rule).fewest:
            with pytest.raises(errors.UpdateRefused):
                on_a_coordinator(folder, files, rule)
            return
        expected = on_a_coordinator(folder, files, rule)
        for threads in (1, 2):
            found = simulated(folder, data.draw(st.permutations(files)), rule, threads)
            np.testing.assert_array_max_ulp(found, expected, maxulp=1)
        if rule == "mean" or (sums and not any(slices for _, _, slices, _ in here)):
            np.testing.assert_array_max_ulp(below_an_edge(folder, files, rule), expected, maxulp=1)


def test_clients_that_train_parts_average_exactly_as_by_hand(tmp_path: Path) -> None:
    """One trains `w`, one trains `b` and half of `w`'s rows, nobody trains `scale`: its momentum stays too."""
    write_file(tmp_path / "base", LAYOUT.unflatten(BASE))
    first, second = ((0, 48),), ((0, 24), (48, 56))
    files = [file_of(tmp_path, 1, "float32", first, 3), file_of(tmp_path, 2, "float32", second, 5)]
    one, two = vector(1).astype(np.float64), vector(2).astype(np.float64)
    moved = np.zeros(LAYOUT.size)
    moved[:24] = (3 * one[:24] + 5 * two[:24]) / 8
    moved[24:48] = one[24:48]
    moved[48:56] = two[48:56]
    expected = (BASE + moved).astype(np.float32)
    answer = AccumulatorHeader(task="edge", base=sha256_hex((tmp_path / "base").read_bytes()), reducer="mean")
    edge = accumulate_updates(MANIFEST, answer, updates=files, out=tmp_path / "edge")
    for updates in (files, [UpdateFile("edge", Path(edge.path))]):
        found = on_a_coordinator(tmp_path, updates, "mean")
        np.testing.assert_array_max_ulp(found, expected, maxulp=1)
        assert found[56] == BASE[56]
    header = read_update(Path(edge.path), MANIFEST.sections, limits=EITHER).header
    assert dict(header.section("delta").coverage) == {first: 3, second: 5}


@pytest.mark.parametrize(
    ("rule", "in_tree", "counts"),
    [("mean", False, True), ("mean", True, True), ("norm_bound(5)", False, True), ("norm_bound(5)", True, False)]
    + [("median", False, False)],
)
def test_an_update_of_a_part_counts_where_its_rule_and_its_node_can_use_one(
    tmp_path: Path, rule: str, in_tree: bool, counts: bool
) -> None:
    write_file(tmp_path / "base", LAYOUT.unflatten(BASE))
    update = read_update(file_of(tmp_path, 1, "float32", ((0, 48),), 3).path, MANIFEST.sections)
    terms = count_terms(reducer(rule), weight_cap=None, in_tree=in_tree)
    if counts:
        assert usable(update, terms).slices
    else:
        with pytest.raises(errors.UpdateRefused) as refused:
            usable(update, terms)
        assert refused.value.reason == "partial_update"


def test_rules_that_need_whole_updates_leave_a_part_out_by_name(tmp_path: Path) -> None:
    write_file(tmp_path / "base", LAYOUT.unflatten(BASE))
    files = [file_of(tmp_path, 1, "float32", ((0, 48),), 3), file_of(tmp_path, 2, "float32", (), 5)]
    result = aggregate_updates(
        MANIFEST, base=tmp_path / "base", updates=files, server=PLAIN, server_state=None, out=tmp_path, rule="median"
    )
    assert [(entry.task, entry.code) for entry in result.rejected] == [("task-001", "partial_update")]


def test_a_changed_file_is_left_out_by_name_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "base", LAYOUT.unflatten(BASE))
    files = [file_of(tmp_path, seed, "float32", (), 3) for seed in (1, 2)]
    data = bytearray(files[0].path.read_bytes())
    data[-3] ^= 1
    files[0].path.write_bytes(bytes(data))
    read, original = list[str](), Path.read_bytes

    def counting(path: Path) -> bytes:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", counting)
    result = aggregate_updates(
        MANIFEST, base=tmp_path / "base", updates=files, server=PLAIN, server_state=None, out=tmp_path / "v"
    )
    assert [(entry.task, entry.code) for entry in result.rejected] == [("task-001", "blob_damaged")]
    assert sorted(name for name in read if name.endswith(".update")) == ["1.update", "2.update"]


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"slices": [[4, 2]]}, "wrong_format"),
        ({"slices": [[0, 2], [1, 3]]}, "wrong_format"),
        ({"slices": [[0, 99]]}, "wrong_format"),
        ({"slices": []}, "wrong_format"),
        ({"coverage": [{"weight": 1, "slices": [[0, 2]]}]}, "wrong_format"),
        ({"slices": [[0, 2]]}, "too_large"),
    ],
)
def test_parts_that_cannot_be_are_refused_by_name(entry: dict[str, Any], code: str) -> None:
    data = encode_update(
        task="t", plan=MANIFEST.id, base="ab" * 32, weight=1, steps=1, specs=MANIFEST.sections,
        sections={"delta": vector(1), "metrics": np.ones(2)},
    ).data  # fmt: skip
    file = read_update(data, MANIFEST.sections).file
    header = to_json(read_update(data, MANIFEST.sections).header)
    header["sections"][0] |= entry
    from coterie.protocol.canonical import canonical_json
    from coterie.protocol.tensors import encode_tensors

    forged = encode_tensors(
        {name: file.read(name) for name in file.tensors}, {"coterie": canonical_json(header).decode()}
    )
    with pytest.raises(errors.UpdateRefused) as caught:
        read_update(forged, MANIFEST.sections)
    assert caught.value.reason == code
