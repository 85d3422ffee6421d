"""Trees of aggregators over real update files: whatever the tree, the version is that of a flat round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.accumulate import AccumulateResult, AccumulatorHeader, accumulate_updates
from coterie.aggregation.accumulator import EITHER, tree_reducer
from coterie.aggregation.aggregate import AggregateResult, aggregate_updates
from coterie.aggregation.plan.manifest import METRIC_RANGE, Manifest, NamedRule, Training
from coterie.aggregation.server_optimizers import server_optimizer
from coterie.aggregation.staleness import Lags
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Layout
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import read_file, write_file
from coterie.protocol.update import encode_update, read_update

LAYOUT = Layout.of({"w": (5, 7), "b": (3,), "scale": ()})
MANIFEST = Manifest(
    name="m",
    shape="external",
    schema=DataSchema((Feature(name="x"),), Label(name="y")),
    layout=LAYOUT,
    sections=(
        SectionSpec.over("delta", LAYOUT, [(0, 36)], value_range=(-1e6, 1e6)),
        SectionSpec.extra("steps", 1),
        SectionSpec.over("rest", LAYOUT, [(36, 39)]),
        SectionSpec.extra("metrics", 2, value_range=METRIC_RANGE),
    ),
    hyper={},
    training=Training(batch_size=1),
    algorithm=NamedRule("fedavg", {}),
    optimizer=NamedRule("external", {}),
    stages=(),
)
SERVER = server_optimizer("sgd", {"lr": 1.0, "momentum": 0.9})


class Grove:
    """A folder with a base version, updates, and the accumulators made of them."""

    def __init__(self, folder: Path, manifest: Manifest = MANIFEST) -> None:
        self.folder, self.made, self.manifest = folder, 0, manifest
        self.base = folder / "base.safetensors"
        write_file(self.base, LAYOUT.unflatten(np.linspace(-1, 1, LAYOUT.size).astype(np.float32)))
        self.digest = sha256_hex(self.base.read_bytes())

    def client(self, seed: int, weight: int, **changes: Any) -> Path:
        """The update of one client, of numbers far apart in size."""
        draws = np.random.Generator(np.random.PCG64(seed))
        vector = (draws.normal(size=LAYOUT.size) * 10.0 ** draws.integers(-6, 3, LAYOUT.size)).astype(np.float32)
        extra = {"steps": np.array([seed + 0.5]), "metrics": np.array([weight, 0.25 * weight])}
        sections: Mapping[str, Any] = {
            spec.name: np.concatenate([vector[a:b] for a, b in spec.slices])
            if spec.slices
            else extra.get(spec.name, np.linspace(0.5, 1 + seed, spec.length))
            for spec in self.manifest.sections
        }
        fields: dict[str, Any] = {
            "task": f"task-{self.made}",
            "plan": self.manifest.id,
            "base": self.digest,
            "weight": weight,
            "steps": seed % 7,
            "specs": self.manifest.sections,
            "sections": sections,
        }
        return self._file(encode_update(**(fields | changes)).data)

    def edge(self, below: Sequence[Path], **changes: Any) -> tuple[Path, AccumulateResult]:
        """The accumulator of these files, and what was said of it."""
        cap = changes.pop("weight_cap", None)
        fields: dict[str, Any] = {"task": f"task-{self.made}", "base": self.digest, "reducer": "mean"}
        answer = AccumulatorHeader(**(fields | changes))
        done = accumulate_updates(self.manifest, answer, updates=below, out=self.folder / "out", weight_cap=cap)
        return self._file(Path(done.path).read_bytes()), done

    def root(self, below: Sequence[Path], **changes: Any) -> AggregateResult:
        """The version made of these files."""
        rest: dict[str, Any] = {"server": SERVER, "server_state": None, "out": self.folder / "v", **changes}
        return aggregate_updates(self.manifest, base=self.base, updates=below, **rest)

    def _file(self, data: bytes) -> Path:
        path = self.folder / f"{self.made}.update"
        path.write_bytes(data)
        self.made += 1
        return path


@pytest.fixture
def grove(tmp_path: Path) -> Grove:
    return Grove(tmp_path)


Tree = Any
trees = st.recursive(
    st.tuples(st.integers(0, 10_000), st.integers(0, 500)),
    lambda below: st.lists(below, min_size=1, max_size=4),
    max_leaves=12,
)


def leaves(tree: Tree) -> list[tuple[int, int]]:
    return [tree] if isinstance(tree, tuple) else [leaf for part in tree for leaf in leaves(part)]


@pytest.mark.parametrize("rule", ["mean", "norm_bound(5)"])
@settings(max_examples=30)
@given(st.lists(trees, min_size=1, max_size=5))
def test_any_tree_makes_the_version_of_the_flat_round(rule: str, forest: list[Tree]) -> None:
    with TemporaryDirectory() as folder:
        grove = Grove(Path(folder))

        def grown(tree: Tree) -> list[Path]:
            if isinstance(tree, tuple):
                seed, weight = cast(tuple[int, int], tree)
                return [grove.client(seed, weight)]
            below = [path for part in tree for path in grown(part)]
            if not any(weight for _, weight in leaves(tree)):
                return below  # an edge of clients without examples has nothing to send
            return [grove.edge(below, reducer=rule)[0]]

        clients = [leaf for tree in forest for leaf in leaves(tree)]
        if not any(weight for _, weight in clients):
            return
        flat = grove.root([grove.client(*leaf) for leaf in clients], rule=rule)
        before = LAYOUT.flatten(read_file(Path(flat.weights)))
        state = read_file(Path(flat.state or ""))
        tree = grove.root([path for part in forest for path in grown(part)], rule=rule)
        after = LAYOUT.flatten(read_file(Path(tree.weights)))
        np.testing.assert_array_max_ulp(before, after, maxulp=1)
        assert (flat.weight, flat.metrics) == (tree.weight, tree.metrics)
        kept = read_file(Path(tree.state or ""))
        # Values up to some thousands may cancel, so what is left of them is as near as they were.
        assert all(np.allclose(state[name], kept[name], rtol=1e-13, atol=1e-11) for name in state)


def test_an_accumulator_says_what_it_is_of_and_is_the_same_whatever_the_order(grove: Grove) -> None:
    below = [grove.client(seed, weight) for seed, weight in ((1, 10), (2, 30), (3, 0))]
    path, done = grove.edge(below, task="above")
    again, _ = grove.edge(below[::-1], task="above")
    assert path.read_bytes() == again.read_bytes()
    header = read_update(path, MANIFEST.sections, limits=EITHER).header
    assert (header.kind, header.task, header.clients, header.weight, header.steps) == ("accumulator", "above", 2, 40, 3)
    assert {entry.codec for entry in header.sections} == {"float64"}
    assert (done.accepted, done.clients) == (("task-0", "task-1"), 2)
    assert [(entry.task, entry.code) for entry in done.rejected] == [("task-2", "bad_weight")]


def test_one_client_below_an_edge_keeps_its_cap(grove: Grove) -> None:
    greedy, modest = grove.client(1, 1000), grove.client(2, 10)
    flat = grove.root([greedy, modest], weight_cap=50)
    done = grove.edge([greedy, modest], weight_cap=50)
    tree = grove.root([done[0]], weight_cap=50)
    assert done[1].weight == flat.weight == tree.weight == 60
    assert flat.version == tree.version


def test_an_accumulator_beyond_the_cap_of_its_clients_is_left_out_by_name(grove: Grove) -> None:
    path, _ = grove.edge([grove.client(1, 1000), grove.client(2, 1000)])
    result = grove.root([path, grove.client(3, 10)], weight_cap=50)
    assert [(entry.code, entry.task) for entry in result.rejected] == [("bad_weight", "task-2")]
    assert result.weight == 10


def test_an_unusable_update_is_never_half_in_an_accumulator(grove: Grove) -> None:
    good = grove.client(1, 10)
    hostile = grove.client(2, 10)
    data = bytearray(hostile.read_bytes())
    data[-8:] = np.float64(np.nan).tobytes()
    for bad in (bytes(data), b"", b"{}"):
        hostile.write_bytes(bad)
        path, done = grove.edge([hostile, good], task="above")
        alone, _ = grove.edge([good], task="above")
        assert path.read_bytes() == alone.read_bytes()
        assert len(done.rejected) == 1


@pytest.mark.parametrize(
    ("changes", "weights", "code"),
    [
        ({"min_clients": 3}, (1, 2), "too_few_clients"),
        ({"max_clients": 1}, (1, 2), "too_many_clients"),
        ({}, (0, 0), "zero_weight"),
        ({"base": "ab" * 32}, (1, 2), "nothing_usable"),
        ({}, (), "nothing_usable"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    grove: Grove, changes: dict[str, Any], weights: tuple[int, ...], code: str
) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        grove.edge([grove.client(seed, weight) for seed, weight in enumerate(weights)], **changes)
    assert caught.value.reason == code


def test_accumulators_count_as_their_clients_for_the_fewest(grove: Grove) -> None:
    two, _ = grove.edge([grove.client(1, 1), grove.client(2, 1)])
    _, done = grove.edge([two, grove.client(3, 1)], min_clients=3, max_clients=3)
    assert done.clients == 3


@pytest.mark.parametrize("rule", ["median", "krum(1)", "norm_bound(5)+nnm(1)+trimmed_mean(1)", "adasum"])
def test_a_rule_that_needs_single_updates_is_refused_in_a_tree(grove: Grove, rule: str) -> None:
    for attempt in (lambda: tree_reducer(rule), lambda: grove.edge([grove.client(1, 1)], reducer=rule)):
        with pytest.raises(errors.ExperimentError) as caught:
            attempt()
        assert caught.value.reason == "reducer_in_tree"


def test_a_root_that_needs_single_updates_leaves_an_accumulator_out_by_name(grove: Grove) -> None:
    path, _ = grove.edge([grove.client(1, 10), grove.client(2, 10)])
    result = grove.root([path, grove.client(3, 10)], rule="median")
    assert [(entry.code, entry.task) for entry in result.rejected] == [("wrong_kind", "task-2")]


def test_a_stale_accumulator_weighs_as_little_as_its_stale_updates_would(grove: Grove) -> None:
    """One weight times ``(1 + s) ** -a`` and sums times the same is what each update would have had."""
    stale, fresh = [grove.client(1, 10), grove.client(2, 20)], grove.client(3, 30)
    path, _ = grove.edge(stale)
    lags = Lags(versions={"task-0": 3, "task-1": 3}, exponent=0.5)
    flat = grove.root([*stale, fresh], lags=lags)
    weights = LAYOUT.flatten(read_file(Path(flat.weights)))
    tree = grove.root([path, fresh], lags=Lags(versions={"task-3": 3}, exponent=0.5))
    np.testing.assert_array_max_ulp(weights, LAYOUT.flatten(read_file(Path(tree.weights))), maxulp=1)


def test_a_lying_edge_moves_a_bounded_version_no_further_than_its_clients_could(grove: Grove) -> None:
    """Clients that are scaled down to length 5 and edges above them that do not scale: the root scales their sum."""
    honest, _ = grove.edge([grove.client(1, 10), grove.client(2, 10)], reducer="norm_bound(5)")
    lying, _ = grove.edge([grove.client(3, 10), grove.client(4, 10)], reducer="mean")
    plain = {"server": server_optimizer("sgd", {"lr": 1.0})}
    base = LAYOUT.flatten(read_file(grove.base)).astype(np.float64)

    def moved(below: Sequence[Path]) -> np.ndarray[Any, np.dtype[np.float64]]:
        result = grove.root(below, rule="norm_bound(5)", **plain)
        return LAYOUT.flatten(read_file(Path(result.weights))) - base

    assert np.linalg.norm(moved([lying])) <= 5 * (1 + 1e-5)
    assert np.linalg.norm(moved([honest, lying])) <= 5 * (1 + 1e-5)
    update = read_update(lying, MANIFEST.sections, limits=EITHER)
    assert np.linalg.norm(np.concatenate([update.decode("delta"), update.decode("rest")])) > 10 * 20
