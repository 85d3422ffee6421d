"""Experiments that train and upload some of a model's tensors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import IFCA, FedProx, Scaffold
from coterie.aggregation.horizontal.algorithm import Algorithm
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.compute.nn.zoo import mlp
from coterie.errors import ExperimentError
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import read_file
from coterie.simulation import simulate, simulate_full


def partial(*patterns: str, **changes: object) -> Experiment:
    """A model of three layers, of which some tensors are uploaded."""
    base = experiment(rounds=RoundPolicy(rounds=2, cohort=3, evaluate_every=0))
    return replace(base, model=mlp((4, 16, 8, 3)), uploads=patterns or None, **changes)  # pyright: ignore[reportArgumentType]


NAMES = compile_plan(partial()).plan.manifest.layout.names


def test_a_section_covers_what_is_uploaded_and_nothing_else() -> None:
    first, last = NAMES[0], NAMES[-1]
    manifest = compile_plan(partial(first, last)).plan.manifest
    (spec,) = [spec for spec in manifest.sections if not spec.is_extra]
    layout = manifest.layout
    assert layout.names == NAMES
    assert spec.slices == (layout.slices[first], layout.slices[last])
    assert spec.segments == layout.segments(spec.slices) and spec.rows == layout.rows(spec.slices)
    whole = compile_plan(partial("*")).plan.manifest
    assert whole.sections == compile_plan(partial()).plan.manifest.sections


@pytest.mark.parametrize("algorithm", [None, FedProx(0.1), Scaffold(clients=6)], ids=["fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize("codec", ["float32", "eden:4"])
def test_what_is_not_uploaded_stays_bit_for_bit(algorithm: Algorithm | None, codec: str, tmp_path: Path) -> None:
    head = NAMES[-2:]
    wanted = partial(*head, codecs=(codec,))
    wanted = wanted if algorithm is None else replace(wanted, algorithm=algorithm)
    result = simulate_full(wanted, CLIENTS, folder=tmp_path)
    models = [record.model for record in result.history.rounds]
    last = read_file(tmp_path / f"{models[-1]}.safetensors")
    first = compile_plan(wanted).initial
    for name in NAMES:
        changed = last[name].tobytes() != first[name].tobytes()
        assert changed == (name in head), name


def test_uploads_cost_what_they_cover() -> None:
    head = NAMES[-2:]
    plans = [compile_plan(partial(*names)).plan.manifest for names in ((), head)]
    lengths = [plan.sections[0].length for plan in plans]
    assert lengths[1] == sum(int(np.prod(plans[0].layout.shapes[name])) for name in head) < lengths[0] / 5


def test_names_that_no_tensor_has_are_refused() -> None:
    with pytest.raises(ExperimentError, match="uploads 'nothing.\\*'") as caught:
        compile_plan(partial(NAMES[0], "nothing.*"))
    assert caught.value.reason == "uploads_unknown" and NAMES[0] in str(caught.value.hint)
    with pytest.raises(ExperimentError, match="at least one tensor"):
        replace(partial(), uploads=())


def test_methods_whose_versions_are_not_the_model_are_refused() -> None:
    with pytest.raises(ExperimentError) as caught:
        compile_plan(replace(partial(NAMES[-1]), algorithm=IFCA(2)))
    assert caught.value.reason == "uploads_unsupported"


def test_an_external_model_uploads_everything() -> None:
    with pytest.raises(ExperimentError, match="uploads all of its parameters"):
        replace(partial("w"), model=ExternalModel(parameters={"w": (3,)}), loss=None, optimizer=None, metrics={})


def test_updates_that_their_codec_cannot_hold_fail_the_round_by_name() -> None:
    def fit(params: Params, task: FitTask) -> FitResult:
        return {"w": params["w"] + np.float32(1e5)}, 1, 1, {}

    own = replace(experiment(), model=ExternalModel({"w": (3,)}), optimizer=None, loss=None, metrics={})
    wanted = replace(own, codecs=("float16",), rounds=RoundPolicy(rounds=1, cohort=2, evaluate_every=0))
    (record,) = simulate_full(wanted, CLIENTS[:2], trainer=ExternalTrainer(fit)).history
    assert (record.state, record.cause, record.model) == ("abandoned", "aggregate_failed", None)


@pytest.mark.parametrize("codec", ["float32", "int8", "eden:4", "randk:0.1"])
def test_under_user_level_privacy_the_record_says_the_same_of_any_rows(codec: str) -> None:
    """Rows that learn much and rows that cannot learn anything: what is on record of a round is equal but for time."""
    policy = RoundPolicy(rounds=2, cohort=len(CLIENTS), weight_cap=1, evaluate_every=0)
    private = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=4.0)
    told: dict[str, Any] = {"codecs": (codec,), "privacy": private, "rounds": policy, "secure_aggregation": False}
    blank = [{name: np.zeros_like(value) for name, value in client.items()} for client in CLIENTS]
    found = [
        [{**record.to_dict(), "seconds": None, "model": None} for record in simulate(experiment(**told), clients)]
        for clients in (CLIENTS, blank)
    ]
    assert found[0] == found[1]
