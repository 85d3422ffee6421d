"""The numeric job over real update files."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie import errors
from coterie.aggregation.aggregate import AggregateResult, aggregate_updates
from coterie.aggregation.plan.manifest import METRIC_RANGE, Manifest, NamedRule, Training
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.reducers import aggregate
from coterie.aggregation.server_optimizers import ServerOptimizer, server_optimizer, server_sgd
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Layout
from coterie.protocol.privacy import UserLevel
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import read_file, write_file
from coterie.protocol.update import encode_update

LAYOUT = Layout.of({"w": (2, 3), "b": (4,)})
Vector = npt.NDArray[Any]


def manifest_of(*sections: SectionSpec, algorithm: str = "fedavg") -> Manifest:
    return Manifest(
        name="m",
        shape="external",
        schema=DataSchema((Feature(name="x"),), Label(name="y")),
        layout=LAYOUT,
        sections=(
            *(sections or (SectionSpec.over("delta", LAYOUT),)),
            SectionSpec.extra("metrics", 2, value_range=METRIC_RANGE),
        ),
        hyper={},
        training=Training(batch_size=1),
        algorithm=NamedRule(algorithm, {}),
        optimizer=NamedRule("external", {}),
        stages=(),
    )


MANIFEST = manifest_of()


class Job:
    """A folder with a base version, to which updates are added."""

    def __init__(self, folder: Path, manifest: Manifest = MANIFEST) -> None:
        self.folder, self.manifest = folder, manifest
        self.base = folder / "base.safetensors"
        self.weights = np.arange(LAYOUT.size, dtype=np.float32)
        write_file(self.base, LAYOUT.unflatten(self.weights))
        self.updates: list[Path] = []

    def add(self, value: float | Vector, weight: int = 1, *, task: str | None = None, **changes: Any) -> Path:
        vector = np.full(LAYOUT.size, value, np.float32) if isinstance(value, float | int) else value.astype(np.float32)
        fields: dict[str, Any] = {
            "task": task or f"task-{len(self.updates)}",
            "plan": self.manifest.id,
            "base": sha256_hex(self.base.read_bytes()),
            "weight": weight,
            "steps": 1,
            "specs": self.manifest.sections,
            "sections": {"metrics": np.array([weight, 2.0 * weight])}
            | {
                spec.name: np.concatenate([vector[a:b] for a, b in spec.slices])
                for spec in self.manifest.sections
                if spec.slices
            },
        }
        path = self.folder / f"{len(self.updates)}.update"
        path.write_bytes(encode_update(**(fields | changes)).data)
        self.updates.append(path)
        return path

    def run(
        self,
        updates: Sequence[Path] | None = None,
        *,
        server: ServerOptimizer | None = None,
        state: Path | None = None,
        out: str = "out",
        weight_cap: int | None = None,
        rule: str = "mean",
        trusted: str | None = None,
    ) -> AggregateResult:
        return aggregate_updates(
            self.manifest,
            base=self.base,
            updates=self.updates if updates is None else updates,
            server=server or server_sgd(),
            server_state=state,
            out=self.folder / out,
            weight_cap=weight_cap,
            rule=rule,
            trusted=trusted,
        )

    def vector(self, result: AggregateResult) -> Vector:
        return LAYOUT.flatten(read_file(Path(result.weights)))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_new_version_is_base_plus_weighted_mean(job: Job) -> None:
    job.add(1.0, 1)
    job.add(4.0, 2)
    result = job.run()
    np.testing.assert_array_equal(job.vector(result), job.weights + 3)
    assert result.version == sha256_hex(Path(result.weights).read_bytes())
    assert (result.accepted, result.rejected, result.weight, result.state) == (("task-0", "task-1"), (), 3.0, None)
    assert result.metrics == {"examples": 3.0, "loss": 6.0}
    assert result.step_norm == pytest.approx(3 * np.sqrt(LAYOUT.size))
    assert json.loads(json.dumps(result.to_dict()))["version"] == result.version


def test_order_and_repetition_give_the_same_bytes(job: Job) -> None:
    rng = np.random.default_rng(1)
    for weight in (3, 1, 7, 2):
        job.add(rng.normal(size=LAYOUT.size), weight)
    versions = {job.run(order, out=f"o{i}").version for i, order in enumerate((job.updates, job.updates[::-1]))}
    assert len(versions | {job.run(out="again").version}) == 1


def test_a_claimed_weight_counts_up_to_the_cap(job: Job) -> None:
    job.add(0.0, 1)
    job.add(1.0, 1_000_000)
    result = job.run(weight_cap=1)
    np.testing.assert_array_equal(job.vector(result), job.weights + np.float32(0.5))
    assert result.weight == 2.0


def test_one_client_with_unit_rate_moves_the_model_to_that_client(job: Job) -> None:
    delta = np.linspace(-1, 1, LAYOUT.size)
    job.add(delta, 5)
    np.testing.assert_array_equal(job.vector(job.run()), job.weights + delta.astype(np.float32))


def test_momentum_is_carried_from_round_to_round(job: Job) -> None:
    job.add(1.0)
    server = server_sgd(0.5, momentum=0.5)
    first = job.run(server=server, out="r1")
    assert first.state is not None
    second = job.run(server=server, state=Path(first.state), out="r2")
    np.testing.assert_array_equal(job.vector(first), job.weights + np.float32(0.5))
    np.testing.assert_array_equal(job.vector(second), job.weights + np.float32(0.75))


def not_finite(job: Job) -> Path:
    path = job.add(7.25)
    data = path.read_bytes()
    at = data.index(np.float32(7.25).tobytes())
    path.write_bytes(data[:at] + np.float32(np.nan).tobytes() + data[at + 4 :])
    return path


def truncated(job: Job) -> Path:
    path = job.add(9.0)
    path.write_bytes(path.read_bytes()[:-8])
    return path


def absent(job: Job) -> Path:
    path = job.add(9.0)
    path.unlink()
    return path


def huge_metrics(job: Job) -> Path:
    return job.add(9.0, sections={"delta": np.zeros(LAYOUT.size, np.float32), "metrics": np.array([1.0, 1e308])})


BAD: dict[str, Callable[[Job], Path]] = {
    "out_of_range": huge_metrics,
    "wrong_plan": lambda job: job.add(9.0, plan="0" * 64),
    "wrong_base": lambda job: job.add(9.0, base="0" * 64),
    "not_finite": not_finite,
    "truncated": truncated,
    "duplicate_task": lambda job: job.add(9.0, task="task-0"),
    "storage": absent,
}


@pytest.mark.parametrize("code", sorted(BAD))
def test_a_bad_update_is_skipped_and_named_and_never_half_added(job: Job, code: str) -> None:
    job.add(1.0)
    alone = job.run(out="alone").version
    BAD[code](job)
    result = job.run()
    assert result.version == alone
    assert result.accepted == ("task-0",)
    assert len(result.rejected) == 1 and result.rejected[0].code.startswith(code) and result.rejected[0].message


@pytest.mark.parametrize("code", ["wrong_plan", "truncated"])
def test_nothing_usable_is_a_named_failure(job: Job, code: str) -> None:
    BAD[code](job)
    with pytest.raises(errors.UpdateRefused) as caught:
        job.run()
    assert caught.value.reason == "nothing_usable"
    with pytest.raises(errors.UpdateRefused, match="None of the 0"):
        job.run([])


def test_zero_weights_and_overflow_are_named_failures(job: Job) -> None:
    job.add(1.0, 0)
    with pytest.raises(errors.UpdateRefused) as caught:
        job.run()
    assert caught.value.reason == "zero_weight"
    job.add(3e38, 1)
    with pytest.raises(errors.UpdateRefused) as caught:
        job.run(server=server_sgd(10.0))
    assert caught.value.reason == "not_finite"
    assert not (job.folder / "out").exists()


def test_uncovered_slices_keep_weights_and_momentum(tmp_path: Path) -> None:
    head = manifest_of(SectionSpec.over("delta", LAYOUT, ((6, 10),)))
    job = Job(tmp_path, head)
    job.add(1.0)
    (tmp_path / "whole").mkdir()
    whole = Job(tmp_path / "whole")
    whole.add(1.0)
    server = server_sgd(1.0, momentum=0.5)
    before = whole.run(server=server)
    assert before.state is not None
    result = job.run(job.updates, server=server, state=Path(before.state), out="head")
    np.testing.assert_array_equal(job.vector(result)[:6], job.weights[:6])
    np.testing.assert_array_equal(job.vector(result)[6:], job.weights[6:] + np.float32(1.5))
    assert result.state is not None
    np.testing.assert_array_equal(read_file(Path(result.state))["optimizer/velocity"], [1.0] * 6 + [1.5] * 4)


def test_server_optimizers_are_rebuilt_from_their_names() -> None:
    server = server_sgd(0.3, momentum=0.9)
    assert server_optimizer(server.name, server.parameters) == server
    for name, parameters in (("magic", {}), ("sgd", {"beta": 1.0}), ("sgd", {"lr": 0.0}), ("sgd", {"momentum": 1.0})):
        with pytest.raises(errors.ExperimentError):
            server_optimizer(name, parameters)


def test_memory_is_that_of_the_model_however_many_updates(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(400):
        job.add(1.0)

    def peak(updates: Sequence[Path]) -> int:
        tracemalloc.start()
        job.run(updates)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(job.updates[:2])
    # What is kept of an update is its task, its path and its weight.
    assert (peak(job.updates) - peak(job.updates[:4])) / 396 < 1024


@pytest.mark.parametrize("text", ["median", "krum(1)", "nnm(1)+trimmed_mean(1)", "norm_bound(2)", "bulyan(1)"])
def test_a_rule_over_update_files_is_the_rule_over_their_vectors(job: Job, text: str) -> None:
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(7, LAYOUT.size)).astype(np.float32)
    for vector in vectors:
        job.add(vector, 3)
    job.add(np.zeros(LAYOUT.size), 0)
    result = job.run(rule=text)
    expected = job.weights + aggregate(text, vectors).astype(np.float32)
    np.testing.assert_allclose(job.vector(result), expected, rtol=1e-6)
    assert result.metrics == {"examples": 21.0, "loss": 42.0} and len(result.accepted) == 7
    assert [(entry.task, entry.code) for entry in result.rejected] == [("task-7", "bad_weight")]
    again = job.run(job.updates[::-1], rule=text, out="again")
    assert again.version == result.version


def test_a_rule_sees_the_means_of_all_sections_as_one_vector_and_keeps_sums(tmp_path: Path) -> None:
    # FedAvg moves the model by the section delta; that the other one is far away must keep krum from the first update.
    parts = (SectionSpec.over("delta", LAYOUT, ((0, 3),)), SectionSpec.over("other", LAYOUT, ((3, 10),)))
    job = Job(tmp_path, manifest_of(*parts))
    vectors = np.ones((5, LAYOUT.size), np.float32) * np.array([[1.0], [1.0], [1.1], [2.0], [2.1]], np.float32)
    vectors[:2, 3:] *= np.array([[50.0], [-50.0]], np.float32)
    for vector in vectors:
        job.add(vector)
    chosen = aggregate("krum(2)", vectors)
    assert chosen[0] != aggregate("krum(2)", vectors[:, :3])[0]
    result = job.run(rule="krum(2)")
    np.testing.assert_allclose(job.vector(result)[:3], job.weights[:3] + chosen[:3], rtol=1e-6)
    assert result.metrics == {"examples": 5.0, "loss": 10.0}


@pytest.mark.parametrize("text", ["centered_clipping(3,2)", "nnm(1)+centered_clipping(3)"])
def test_centered_clipping_goes_on_from_round_to_round_by_the_state_file(job: Job, text: str) -> None:
    generator = np.random.default_rng(4)
    state, last = None, None
    for number in range(3):
        job.updates.clear()
        sent = 5 + number + generator.normal(size=(5, LAYOUT.size)).astype(np.float32)
        for vector in sent:
            job.add(vector)
        result = job.run(rule=text, state=state, out=f"out-{number}")
        last = aggregate(text, sent, reference=last)
        np.testing.assert_allclose(job.vector(result), job.weights + last, rtol=1e-5)
        assert np.linalg.norm(last) > 3 * number + 2
        # A repeated job, as after a restart, reads the state of the round before, not its own.
        assert job.run(rule=text, state=state, out="again").version == result.version
        state = Path(result.state or "")
    assert job.run(rule="median", state=state, out="other").state is None


@pytest.mark.parametrize("text", ["fltrust", "nnm(1)+fltrust"])
def test_updates_are_judged_by_the_trusted_one_which_is_none_of_them(job: Job, text: str) -> None:
    sent = np.random.default_rng(2).normal(1, 1, (6, LAYOUT.size)).astype(np.float32)
    for vector in sent:
        job.add(vector)
    result = job.run(rule=text, trusted="task-2")
    expected = aggregate(text, np.delete(sent, 2, axis=0), reference=sent[2])
    np.testing.assert_allclose(job.vector(result), job.weights + expected, rtol=1e-5, atol=1e-6)
    # It took part, so its metrics count.
    assert result.metrics["examples"] == 6.0 and "task-2" in result.accepted
    assert job.run(job.updates[::-1], rule=text, trusted="task-2", out="again").version == result.version


@pytest.mark.parametrize("spoilt", ["absent", "unknown", "weightless", "unreadable"])
def test_without_the_trusted_update_nothing_is_made(job: Job, spoilt: str) -> None:
    job.add(1.0)
    job.add(1.0)
    root = job.add(1.0, 0 if spoilt == "weightless" else 1, task="root")
    if spoilt == "unreadable":
        root.write_bytes(root.read_bytes()[:-1])
    trusted = {"absent": None, "unknown": "task-7"}.get(spoilt, "root")
    with pytest.raises(errors.UpdateRefused, match="trusted client") as caught:
        job.run(rule="fltrust", trusted=trusted)
    assert caught.value.reason == "trusted_missing"


def test_the_trusted_update_alone_makes_nothing(job: Job) -> None:
    job.add(1.0, task="root")
    job.add(1.0, 0)
    with pytest.raises(errors.UpdateRefused) as caught:
        job.run(rule="fltrust", trusted="root")
    assert caught.value.reason == "zero_weight"


def test_too_many_attackers_and_no_weight_are_named_failures(job: Job) -> None:
    job.add(1.0)
    job.add(2.0)
    with pytest.raises(errors.UpdateRefused, match="2f ≥ n") as caught:
        job.run(rule="krum(1)")
    assert caught.value.reason == "too_few_updates"
    with pytest.raises(errors.UpdateRefused) as caught:
        job.run([job.add(3.0, 0)], rule="median")
    assert caught.value.reason == "zero_weight"


def test_an_accumulator_is_no_update_for_a_rule_that_needs_every_one(job: Job) -> None:
    for _ in range(3):
        job.add(1.0)
    sums = {"delta": np.full(LAYOUT.size, 90.0), "metrics": np.array([2.0, 4.0])}
    job.add(0.0, 2, task="edge", kind="accumulator", clients=2, sections=sums)
    result = job.run(rule="median")
    assert [(entry.task, entry.code) for entry in result.rejected] == [("edge", "wrong_kind")]
    np.testing.assert_array_equal(job.vector(result), job.weights + 1)


def test_an_accumulator_is_no_update_where_noise_is_made_for_one_device(job: Job) -> None:
    """Shortened as a whole it would move by up to twice the clip when one of its devices leaves it."""
    sums = {"delta": np.full(LAYOUT.size, 90.0), "metrics": np.array([2.0, 4.0])}
    job.add(0.0, 2, task="edge", kind="accumulator", clients=2, sections=sums)
    privacy = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=1e-3)
    central = CentralNoise(privacy=privacy, round=1, rounds=1, expected=2, seed=bytes(32))
    fields: dict[str, Any] = {"base": job.base, "updates": job.updates, "server": server_sgd(), "server_state": None}
    result = aggregate_updates(job.manifest, out=job.folder / "out", central=central, **fields)
    assert [(entry.task, entry.code) for entry in result.rejected] == [("edge", "wrong_kind")]
    assert np.abs(job.vector(result) - job.weights).max() < 0.01
