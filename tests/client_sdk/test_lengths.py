"""Steps of several lengths: each batch at the shortest that holds its rows, and the update of the full length."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import as_simulated
import numpy as np
import pytest
from as_simulated import assert_as_simulated
from length_kit import (
    BATCH,
    LENGTHS,
    LONGEST,
    ROWS,
    SCHEMA,
    WORDS,
    Read,
    asked,
    assert_close,
    rows,
    trained,
    usual,
    whole,
    widths_of_steps,
)
from numpy.typing import NDArray
from sdk_kit import RESEARCHER, Coordinator

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.plan.check import check_manifest, check_plan
from coterie.aggregation.plan.stage import StageLength
from coterie.aggregation.walk import FED
from coterie.client_sdk.device.policy import memory_needed
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Parameters, ParameterSpec, part, prefixed
from coterie.compute.nn.zoo import gru
from coterie.compute.optim import adam, sgd
from coterie.compute.runtime.length_loop import positions
from coterie.compute.runtime.slots import HostSlot
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import ExperimentError, PlanRefused
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import Feature, Label
from coterie.simulation import simulate_full


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each step that is taken."""
    return widths_of_steps(monkeypatch)


LAYERS: Mapping[str, Any] = {
    "recurrent": lambda: Read(nn.GRU(8, 8)),
    "attention": lambda: Read(nn.MultiHeadAttention(8, 2)),
    "dropout": lambda: Read(nn.GRU(8, 8), dropout=0.3),
}


@pytest.mark.capability("E23")
@pytest.mark.parametrize("layer", LAYERS)
def test_e23_short_steps_make_the_update_of_the_full_length(layer: str, widths: list[int]) -> None:
    # Adam would divide by the gradient of the keys' bias, which is zero but for rounding.
    changes = {"model": LAYERS[layer](), "optimizer": sgd(0.3)}
    found, short = trained(asked(**changes)), sorted(set(widths))
    assert short == [2, 4, LONGEST]
    expected = trained(asked(**changes, lengths={}))
    assert (found.steps, found.weight) == (expected.steps, expected.weight) == (22, ROWS)
    assert_close(found.sections, expected.sections)


def test_each_step_is_as_long_as_its_longest_row_and_their_order_stays(widths: list[int]) -> None:
    data = rows()
    trained(asked(batch_size=1, epochs=1), data=data)
    compiling, needed = len(widths) - ROWS, (data["x"] != 0).sum(axis=1)
    assert sorted(widths[compiling:]) == sorted(2 if n <= 2 else 4 if n <= 4 else LONGEST for n in needed)


def test_a_second_training_begins_anew() -> None:
    trainer = PlanTrainer()
    first, other, again = (trained(usual(), trainer, seed=seed) for seed in (7, 8, 7))
    assert not np.array_equal(first.sections["delta"], other.sections["delta"])
    assert np.array_equal(first.sections["delta"], again.sections["delta"])


def test_a_loop_of_one_plan_does_not_serve_another_of_other_lengths(widths: list[int]) -> None:
    trainer = PlanTrainer()
    trained(usual(), trainer)
    del widths[:]
    trained(asked(lengths={"x": (5,)}), trainer)
    assert set(widths[-22:]) == {5, LONGEST}


def test_labels_over_positions_are_cut_too(widths: list[int]) -> None:
    schema = replace(SCHEMA, label=Label(name="y", shape=(LONGEST,), low=-1, high=WORDS - 1))
    data = rows()
    data["y"] = np.where(data["x"] == 0, -1, (data["x"] + 1) % WORDS).astype(np.int32)
    loss = partial(softmax_cross_entropy, ignore=-1)
    wanted = asked(model=gru(WORDS, 6), schema=schema, loss=loss, lengths={"x": (2, 4), "y": (2, 4)})
    found = trained(wanted, data=data)
    assert set(widths) == {2, 4, LONGEST}
    assert_close(found.sections, trained(replace(wanted, lengths={}), data=data).sections)


def test_a_row_ends_at_its_last_position_that_is_not_filled() -> None:
    held = np.array([[0, 4, 0, 0], [1, 0, 0, 0]])
    assert positions(held, 0) == 2 and positions(held, -1) == 4 and positions(np.zeros((2, 4)), 0) == 0
    assert positions(np.stack([held, 0 * held], axis=2), 0) == 2


def test_a_model_that_learns_from_filled_positions_is_refused_by_name() -> None:
    with pytest.raises(
        ExperimentError, match=r"'lengths' learns from positions that only fill a row.*'x': 2"
    ) as caught:
        compile_plan(asked(model=Read(nn.GRU(8, 8), masked=False)))
    assert caught.value.reason == "length_matters"


class Pooled(nn.Module):
    """Words in, and what a layer and a pool make of all positions, whether there is a word or not."""

    def __init__(
        self, pool: str, layer: nn.Module | None = None, *, dropout: float = 0.0, is_masked: bool = False
    ) -> None:
        self.embedding, self.head, self.layer = nn.Embedding(WORDS, 8), nn.Linear(8, 2), layer
        self.pool, self.dropout, self.is_masked = pool, nn.Dropout(dropout), is_masked
        self.place = nn.PositionalEmbedding(LONGEST, 8)

    def specs(self) -> dict[str, ParameterSpec]:
        layers: dict[str, nn.Module] = {"place": self.place} if self.pool == "first" else {}
        layers |= {} if self.layer is None else {"layer": self.layer}
        return prefixed({"embedding": self.embedding, **layers, "head": self.head})

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        y = self.dropout({}, self.embedding(part(params, "embedding"), x, mode), mode)
        if self.pool == "first":
            y = self.place(part(params, "place"), y, mode)
        held = xp.astype(x != 0, "float32")
        if isinstance(self.layer, nn.MultiHeadAttention):
            mask = (xp.reshape(held, (x.shape[0], 1, 1, x.shape[1])) - 1.0) * (1e9 if self.is_masked else 0.0)
            y = self.layer(part(params, "layer"), y, mode, mask)
        match self.pool:
            case "largest":
                pooled = xp.max(y, axis=1)
            case "first":
                pooled = y[:, 0]
            case "words":
                pooled = xp.sum(y * xp.reshape(held, (*x.shape, 1)), axis=1)
            case _:
                pooled = xp.mean(y, axis=1)
        return self.head(part(params, "head"), pooled, mode)


def small(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Weights from which a step moves next to nothing: the last layer is zero, and embeddings are small."""
    return {
        name: np.zeros_like(value) if name.startswith("head") else np.asarray(value) * np.float32(0.02)
        for name, value in model.init(0).items()
    }


LEAKS: Mapping[str, Any] = {
    "all is dropped at a half": {"model": Pooled("mean", dropout=0.6)},
    "the largest of few words": {"model": Pooled("largest"), "optimizer": sgd(0.1)},
    "rows without a word": {"model": Pooled("first", nn.MultiHeadAttention(8, 2), is_masked=True)},
    "small steps from zero": {
        "model": Pooled("mean"), "optimizer": sgd(1e-4), "initial": small(Pooled("mean"))
    },
    "keys that only fill": {
        "model": Pooled("words", nn.MultiHeadAttention(8, 2)), "optimizer": sgd(1e-3),
        "initial": small(Pooled("words", nn.MultiHeadAttention(8, 2))),
    },
    "Adam": {"model": Pooled("mean"), "optimizer": adam(1e-4)},
}  # fmt: skip


@pytest.mark.parametrize("leak", LEAKS)
def test_no_way_of_learning_from_filled_positions_is_missed(leak: str) -> None:
    with pytest.raises(ExperimentError, match="learns from positions that only fill a row") as caught:
        compile_plan(asked(**LEAKS[leak]))
    assert caught.value.reason == "length_matters"


OPTIMIZERS = {"sgd, small": sgd(1e-5), "sgd, large": sgd(0.3), "adam, large": adam(0.02), "adam, small": adam(1e-4)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_model_that_passes_by_filled_positions_is_never_refused(layer: str, optimizer: str) -> None:
    # What drops out has the recurrent layer in it.
    precisions = ("float32",) if layer == "recurrent" else ("float32", "float16", "bfloat16")
    for precision in precisions:
        made = compile_plan(asked(model=LAYERS[layer](), optimizer=OPTIMIZERS[optimizer], precision=precision))
        lengths = [each.lengths for each in made.plan.manifest.stage("train").lengths]
        assert lengths == [{"x": length} for length in LENGTHS["x"]]


def test_a_model_of_one_length_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(WORDS, 2), nn.Flatten(), nn.Linear(2 * LONGEST, 2))
    with pytest.raises(ExperimentError, match="no step at the lengths .*2") as caught:
        compile_plan(asked(model=model))
    assert caught.value.reason == "length_unwritable"


LONGER = Feature(name="x", dtype="int32", shape=(12,), low=0, high=WORDS - 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": (3, 6)}, "a mapping of names to lengths"),
        ({"lengths": {"z": (3,)}}, "names 'z'"),
        ({"lengths": {"x": (6, 3)}}, r"ascend in 1\.\.7"),
        ({"lengths": {"x": (3, LONGEST)}}, r"ascend in 1\.\.7"),
        ({"lengths": {"x": ()}}, r"ascend in 1\.\.7"),
        ({"lengths": {"x": (2.5,)}}, r"ascend in 1\.\.7"),
        ({"lengths": {"x": 3}}, r"a tuple of whole numbers"),
        ({"lengths": {"y": (3,)}}, "the label has no positions"),
        ({"schema": replace(SCHEMA, features=(LONGER,)), "lengths": {"x": tuple(range(1, 10))}}, "at most 8"),
        ({"variants": ("cpu",)}, "leave lengths out"),
        ({"steps_per_call": 2}, "leave lengths out"),
        ({"privacy": ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=ROWS)}, "leave lengths out"),
        ({"model": ExternalModel({"w": (3,)}), "loss": None, "optimizer": None}, "leave lengths out"),
    ],
)
def test_other_lengths_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        asked(**changes)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Feature(name="x", dtype="int32", low=0, high=9), "no positions"),
        (Feature(name="x", dtype="int32", shape=(LONGEST,), low=1, high=9), "0 fills a sequence"),
        (Feature(name="x", shape=(2,), offset=(0.0, 1.0)), "one offset and one scale"),
    ],
)
def test_features_that_have_no_sequence_are_refused_by_name(feature: Feature, words: str) -> None:
    with pytest.raises(ExperimentError, match=f"lengths of 'x': .*{words}"):
        asked(schema=replace(SCHEMA, features=(feature,)), lengths={"x": (1,)})


@pytest.fixture
def compiled() -> CompiledPlan:
    return usual()


def test_a_plan_without_lengths_says_nothing_of_them(compiled: CompiledPlan) -> None:
    bare = whole().plan
    assert b"lengths" not in bare.manifest.data.replace(b'"name":"lengths"', b"")
    stage = compiled.plan.manifest.stage("train")
    assert [dict(each.lengths) for each in stage.lengths] == [{"x": 2}, {"x": 4}]
    assert compiled.plan.graphs.keys() == {*bare.graphs, "train.length1", "train.length2"}
    assert compiled.plan.graphs["train"] == bare.graphs["train"]


def test_a_policy_counts_what_each_length_is_fed(compiled: CompiledPlan) -> None:
    """State and constants are there once; a row is its positions, its label and its weight."""
    bare = whole().plan
    assert memory_needed(compiled.plan) - memory_needed(bare) == 2 * 4 * BATCH * (LONGEST + 1 + 1)


def test_state_is_copied_once_a_training_whatever_its_lengths(
    compiled: CompiledPlan, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, made = Counter[str](), Counter[str]()
    write, make = HostSlot.write, HostSlot.make

    def counted(slot: HostSlot, array: NDArray[Any]) -> None:
        copied[slot.info.name] += 1
        write(slot, array)

    def counted_slot(info: TensorInfo) -> HostSlot:
        made[info.name] += 1
        return make(info)

    monkeypatch.setattr(HostSlot, "write", counted)
    monkeypatch.setattr(HostSlot, "make", staticmethod(counted_slot))
    trainer, stage = PlanTrainer(), compiled.plan.manifest.stage("train")
    for number in (1, 2):
        task = LocalTask(experiment="lengths", round=number, seed=number)
        del widths[:]
        trainer.train(LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows()))
        assert set(widths) == {2, 4, LONGEST} and sum(map(ne, widths, widths[1:])) > 3
        kept = {tensor.name for tensor in stage.inputs if tensor.source not in FED}
        assert {name: copied[name] for name in kept} == dict.fromkeys(kept, number)
        assert copied["batch/x"] == number * 22
    assert made["batch/x"] == 3 and all(made[name] <= 2 for name in stage.carry.values())


def test_a_door_holds_each_file_against_its_length(compiled: CompiledPlan) -> None:
    stage = compiled.plan.manifest.stage("train")
    first, second = stage.lengths
    for lengths, code in (
        ((replace(first, lengths={"x": 3}), second), "plan_interface"),
        ((second, first), "plan_stages"),
        ((first, replace(second, lengths={"x": LONGEST})), "plan_stages"),
        ((first, replace(second, lengths={"z": 4})), "plan_stages"),
    ):
        with pytest.raises(PlanRefused) as caught:
            refused(compiled, lengths)
        assert caught.value.reason == code


def test_a_device_does_without_the_file_of_a_length(compiled: CompiledPlan, widths: list[int]) -> None:
    graphs = {name: data for name, data in compiled.plan.graphs.items() if name != "train.length1"}
    plan = replace(compiled.plan, graphs=graphs)
    task = LocalTask(experiment="lengths", round=1, seed=7)
    found = PlanTrainer().train(LocalWork(plan=plan, task=task, weights=compiled.initial, rows=rows()))
    assert set(widths) == {4, LONGEST}
    assert_close(found.sections, trained(whole()).sections)


def refused(compiled: CompiledPlan, lengths: tuple[StageLength, ...]) -> None:
    manifest = compiled.plan.manifest
    stages = tuple(replace(s, lengths=lengths) if s.name == "train" else s for s in manifest.stages)
    changed = replace(manifest, stages=stages)
    check_manifest(changed)
    signed = replace(compiled.plan, manifest=changed).sign(RESEARCHER)
    check_plan(
        signed.manifest.data,
        signed.graphs,
        signature=signed.signature,
        signer=signed.signer,
        allowed_signers=[signed.signer or ""],
    )


def test_engines_agree_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    clients = [rows(1), rows(2)]

    def of(rounds: int) -> Experiment:
        policy = RoundPolicy(rounds=rounds, cohort=2, evaluate_every=0)
        # Attention is compiled in a fifth of the time of a recurrent layer, and this compiles six times.
        model = LAYERS["attention"]()
        return asked(model=model, optimizer=sgd(0.3), rounds=policy, evaluation=rows(9))

    expected = simulate_full(of(4), clients)
    apart = simulate_full(of(4), clients, engine="processes")
    lanes = simulate_full(of(4), clients, engine="batched")
    simulate_full(of(2), clients, folder=tmp_path)
    resumed = simulate_full(of(4), clients, folder=tmp_path, resume=True)
    for tensor, value in expected.weights.items():
        assert np.array_equal(resumed.weights[tensor], value) and np.array_equal(apart.weights[tensor], value)
    assert_close(lanes.weights, expected.weights)
    bare = simulate_full(replace(of(4), lengths={}), clients)
    assert_close(expected.weights, bare.weights)
    assert dict(expected.history.rounds[-1].training) == pytest.approx(dict(bare.history.rounds[-1].training), rel=1e-4)


def test_devices_and_a_simulation_take_the_same_steps(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    """The simulation, which comes last, steps at the full length: only devices can have taken shorter steps."""
    simulate = as_simulated.simulate_full
    by_devices: list[int] = []

    def of_full_length(wanted: Experiment, *clients: Any) -> Any:
        by_devices.extend(widths[compiling:])
        return simulate(replace(wanted, lengths={}), *clients)

    monkeypatch.setattr(as_simulated, "simulate_full", of_full_length)
    wanted = asked(
        batch_size=64,
        epochs=3,
        rounds=RoundPolicy(rounds=3, cohort=2, evaluate_every=0),
        evaluation=rows(9),
    )
    short = rows(1)
    short["x"][:, 4:] = 0
    compile_plan(wanted)
    compiling = 2 * len(widths)  # it is compiled once more when it is submitted
    assert_as_simulated(coordinator, tmp_path, wanted, [short, rows(2)], tolerance=1e-5)
    assert set(by_devices) == {4, LONGEST}
