"""Training under a promise of privacy that comes to nothing: it is sent as zeros, and the device's state stays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay import task, terms
from sdk_kit import SCHEMA, Events, Lab, Recorder, hear, kinds, run

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.private.contribution import contribution, zeros
from coterie.client_sdk.device.divergence import as_divergence, blameless
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.quiet import speakable
from coterie.client_sdk.device.trainers.external import ExternalTrainer, Fit, FitResult, FitTask, Params
from coterie.errors import CoterieError, DataError, GraphRefused, InputError, PlanRefused
from coterie.protocol import ids
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.privacy import LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import encode_update, read_update

TAKEN = DevicePolicy(max_epsilon=1000.0, trusts=frozenset({"device", "cohort", "coordinator"}))
LOCAL = LocalLevel(mechanism="randomised_response", epsilon=4.0, clip=0.5)
PROMISE = PrivacyTerms(unit="user", epsilon=1.0, delta=1e-6, mechanism="gaussian", trusts="coordinator")


def grown(params: Params, by: float) -> FitResult:
    return {name: value + np.float32(by) for name, value in params.items()}, 7, 3, {}


def not_finite(params: Params, task: FitTask) -> FitResult:
    return grown(params, np.nan)


def too_far(params: Params, task: FitTask) -> FitResult:
    return grown(params, 1e6)


def no_loss(params: Params, task: FitTask) -> FitResult:
    return grown(params, 1.0)[0], 7, 3, {"loss": np.nan, "accuracy": 1.0}


def failing(params: Params, task: FitTask) -> FitResult:
    raise ValueError("Input X contains infinity.")


def refusing(params: Params, task: FitTask) -> FitResult:
    raise GraphRefused("A calibration row cannot be run.", code="graph_refused")


def fine(params: Params, task: FitTask) -> FitResult:
    return grown(params, 1.0)


@pytest.mark.parametrize("privacy", [UserLevel(clip=1.0, delta=1e-5, noise_multiplier=2.0), LOCAL])
@pytest.mark.parametrize(
    ("fit", "code"),
    [
        (not_finite, "not_finite"),
        (too_far, "out_of_range"),
        (no_loss, "metric_invalid"),
        (failing, "trainer_failed"),
        (refusing, "graph_refused"),
        (fine, None),
    ],
)
def test_whatever_becomes_of_a_training_an_update_of_the_same_size_is_sent(
    tmp_path: Path, fit: Fit, code: str | None, privacy: Privacy
) -> None:
    bodies: list[bytes] = []
    aborts: list[bytes] = []
    heard: Events = []
    policy = RoundPolicy(rounds=1, cohort=1, weight_cap=1, evaluate_every=0)
    wanted = Experiment(
        name="own",
        model=ExternalModel({"w": (16,)}),
        schema=SCHEMA,
        codecs=("float16",),
        secure_aggregation=False,
        privacy=privacy,
        rounds=policy,
    )

    async def work(place: Lab) -> None:
        view = await place.submit(wanted)
        changes: dict[str, Any] = {"policy": TAKEN, "trainer": ExternalTrainer(fit), "on_event": hear(heard)}
        agent = await place.agent("own", **changes)
        await agent.run(rounds=1)
        (record,) = (await place.control.history(view.id)).rounds
        assert (record.state, record.accepted, record.failed) == ("committed", 1, 0)

    run(work, tmp_path, lambda app: Recorder(Recorder(app, "/update", bodies), "/abort", aborts))
    (body,) = bodies
    specs = compile_plan(wanted).plan.manifest.sections
    update = read_update(body, specs)
    assert (update.header.weight, update.header.steps, aborts) == (1, 0, [])
    same: dict[str, Any] = {"task": update.header.task, "plan": update.header.plan, "base": update.header.base}
    silent = zeros(specs, {}).sections
    of_zeros = encode_update(**same, weight=1, steps=0, specs=specs, sections=silent, codecs={"delta": "float16"})
    assert len(body) == len(of_zeros.data)
    assert not update.decode("metrics").any()
    sent = update.decode("delta")
    local = isinstance(privacy, LocalLevel)
    assert np.isfinite(sent).all() and sent.any() == (local or code is None)
    told = [event["code"] for event in heard if event["event"] == "unusable"]
    # Local noise makes signs of a step that is too far for the codec.
    assert told == ([code] if code and not (local and fit is too_far) else [])
    assert "refused" not in kinds(heard)


SPECS = (
    SectionSpec(name="delta", length=3, slices=((0, 3),)),
    SectionSpec(name="tau", length=1, value_range=(1.0, 9.0)),
    SectionSpec(name="metrics", length=2, reduction="sum", denominator=None),
)
STATE = {"own": np.ones(2, np.float32)}
GOOD: dict[str, Any] = {"delta": np.ones(3, np.float32), "tau": np.full(1, 2.0), "metrics": np.ones(2)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": np.array([1, np.nan, 1], np.float32)},
        {"delta": np.array([1, -np.inf, 1], np.float32)},
        {"delta": np.ones(2, np.float32)},
        {"tau": np.full(1, 9.5)},
    ],
)
def test_one_number_that_cannot_be_used_makes_zeros_of_all_and_keeps_the_state(wrong: dict[str, Any]) -> None:
    made = contribution(SPECS, GOOD | wrong, before=STATE, after={"own": np.zeros(2, np.float32)})
    assert not made.usable and made.state is STATE
    assert {name: vector.tolist() for name, vector in made.sections.items()} == {
        "delta": [0, 0, 0],
        "tau": [1],  # the nearest that its public range has
        "metrics": [0, 0],
    }
    assert made.sections.keys() == zeros(SPECS, STATE).sections.keys()


def test_what_can_be_used_goes_on_without_its_metric_sums() -> None:
    after = {"own": np.zeros(2, np.float32)}
    made = contribution(SPECS, GOOD | {"metrics": np.full(2, np.nan)}, before=STATE, after=after)
    assert made.usable and made.state is after
    assert made.sections["delta"] is GOOD["delta"] and made.sections["metrics"].tolist() == [0, 0]


def test_a_state_that_is_not_finite_is_not_kept() -> None:
    made = contribution(SPECS, GOOD, before=STATE, after={"own": np.array([1, np.inf], np.float32)})
    assert made.usable and made.state is STATE


@pytest.mark.parametrize("error", [InputError("The loss is nan."), PlanRefused("No graph."), DataError("No rows.")])
def test_errors_of_work_with_rows_are_told_to_nobody_under_a_promise(error: CoterieError) -> None:
    promised = Task.model_construct(privacy=PROMISE, local=None)
    plain = Task.model_construct(privacy=None, local=None)
    data = isinstance(error, DataError)
    for phase in ("training", "evaluating", "encoding"):
        assert not speakable(promised, phase, error)
        assert speakable(plain, phase, error) is not data
    for phase in ("checking", "downloading", "uploading"):
        assert speakable(promised, phase, error) is not data


def test_divergence_has_a_name_of_its_own_only_where_nothing_is_promised() -> None:
    nan = InputError("The sum of metric 'loss' is nan; it must be finite.", code="metric_invalid")
    secure = terms(10)
    plain = task(secure, ids.new_id(ids.DEVICE)).model_copy(update={"secure": None})
    told = as_divergence(plain, nan)
    assert told.reason == "training_diverged" and f"round {plain.round}; lower the learning rate" in told.message
    assert as_divergence(plain.model_copy(update={"privacy": PROMISE}), nan) is nan
    assert blameless(told) and blameless(nan) and not blameless(DataError("no such file", code="data_missing"))
