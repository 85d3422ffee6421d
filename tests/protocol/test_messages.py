"""Messages: strict where hostile input arrives, lenient where a newer server may say more, whole under a signature."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from coterie import errors
from coterie.protocol import control, device, ids, wire
from coterie.protocol.control import Best, ExperimentCreate, Page, RoundPolicy, RoundView, Target, TokenCreated
from coterie.protocol.device import CheckIn, CheckInResponse, EnrolRequest, PlanRef, PopulationInfo, Problem, Task
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.signing import SigningKey, sign_plan
from coterie.protocol.wire import BlobRef, Request, Response, Signed, read_message

KEY = SigningKey.from_seed(bytes(range(32)))
RESEARCHER = SigningKey.from_seed(bytes(range(1, 33)))
SCHEMA = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", classes=("a", "b")))
PLAN = PlanRef(id="ab" * 32, signature=sign_plan(RESEARCHER, "ab" * 32), signer=RESEARCHER.public)
TASK = Task(
    id=ids.new_id(ids.TASK),
    device=ids.new_id(ids.DEVICE),
    experiment=ids.new_id(ids.EXPERIMENT),
    round=3,
    kind="train",
    plan=PLAN,
    model=BlobRef(sha256="cd" * 32, size=1000),
    frozen=None,
    hyper={"lr": 1.0, "mu": 1e-7},
    codecs=("int8", "float32"),
    lease_ms=60_000,
    weight_cap=500,
    upload_limit=10_000,
    seed=7,
    edge=None,
)
EXPERIMENT: dict[str, Any] = {
    "name": "digits",
    "population": "phones",
    "plan": PLAN.model_dump(),
    "initial": {"sha256": "cd" * 32, "size": 1000},
    "rounds": {"rounds": 10, "cohort": 5},
    "server": {"name": "sgd", "parameters": {"lr": 1.0}},
}


def classes(module: Any) -> list[type[BaseModel]]:
    values: list[Any] = [getattr(module, name) for name in dir(module)]
    return [
        value
        for value in values
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__.startswith("coterie.")
    ]


MESSAGES = sorted({*classes(wire), *classes(device), *classes(control)}, key=lambda kind: kind.__name__)


def over_the_wire(message: BaseModel) -> dict[str, Any]:
    return json.loads(message.model_dump_json())


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_is_frozen_documented_and_of_one_of_three_kinds(kind: type[BaseModel]) -> None:
    assert kind.model_config.get("frozen") and kind.__doc__
    expected = "forbid" if issubclass(kind, Request) else "ignore" if issubclass(kind, Response) else "allow"
    assert kind.model_config.get("extra") == expected
    assert expected != "allow" or issubclass(kind, Signed)
    json.dumps(TypeAdapter(kind).json_schema())


def test_a_signed_task_verifies_after_the_wire() -> None:
    task = TASK.signed(KEY)
    received = CheckInResponse.model_validate(
        over_the_wire(
            CheckInResponse(task=task, retry_if_accepted=window(1, 2), retry_if_rejected=window(3, 4), settled={})
        )
    )
    assert received.task == task
    received_task = Task.model_validate(over_the_wire(task))
    received_task.verify(KEY.public)
    received_task.plan.verify()


def window(low: int, high: int) -> device.RetryWindow:
    return device.RetryWindow(min_ms=low, max_ms=high)


def test_fields_that_this_version_does_not_know_stay_under_the_signature() -> None:
    newer: dict[str, Any] = {**over_the_wire(TASK), "attempt": {"id": 1.0}}
    newer["model"]["codec"] = "zstd"
    task = Task.model_validate(newer).signed(KEY)
    received = Task.model_validate(over_the_wire(task))
    received.verify(KEY.public)
    for change in ({"attempt": {"id": 2}}, {"model": over_the_wire(TASK)["model"]}):
        with pytest.raises(errors.Unauthenticated):
            Task.model_validate({**over_the_wire(task), **change}).verify(KEY.public)


CHANGES: dict[str, Any] = {
    "id": ids.new_id(ids.TASK),
    "device": ids.new_id(ids.DEVICE),
    "experiment": ids.new_id(ids.EXPERIMENT),
    "round": 4,
    "kind": "evaluate",
    "plan": {**PLAN.model_dump(), "id": "ac" * 32},
    "model": {"sha256": "cd" * 32, "size": 1001},
    "frozen": {"sha256": "cd" * 32, "size": 1},
    "hyper": {"lr": 1.5, "mu": 1e-7},
    "codecs": ["float32", "int8"],
    "lease_ms": 60_001,
    "weight_cap": 501,
    "upload_limit": 10_001,
    "seed": 8,
    "edge": {
        "reducer": "mean",
        "min_clients": 2,
        "max_clients": 9,
        "deadline_ms": 1000,
        "selection": "uniform",
        "min_examples": None,
        "labels": (),
        "rest_rounds": 0,
        "rest_s": 0.0,
    },
    "secure": {
        "attempt": ids.new_id(ids.ATTEMPT),
        "mode": "consistent",
        "corrupt": 0.1,
        "dropout": 0.1,
        "min_clients": 9,
        "max_clients": 10,
        "weight_cap": 500,
        "sections": [{"name": "counts", "encoding": "exact", "values": 5, "bits": 32, "top": 1}],
        "noise": None,
        "phase_ms": 1000,
    },
    "privacy": {"unit": "user", "epsilon": 1.0, "delta": 1e-6, "mechanism": "gaussian", "trusts": "coordinator"},
    "lineage": {"round": 2, "before": "ef" * 32},
    "local": {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6, "clip": 1.0, "top": 0.1, "outputs": None},
}


@pytest.mark.parametrize("name", sorted(set(Task.model_fields) - {"signature"}))
def test_every_field_of_a_task_is_signed(name: str) -> None:
    task = over_the_wire(TASK.signed(KEY))
    with pytest.raises(errors.Unauthenticated):
        Task.model_validate({**task, name: CHANGES[name]}).verify(KEY.public)


def test_an_unsigned_task_does_not_verify() -> None:
    with pytest.raises(errors.Unauthenticated):
        TASK.verify(KEY.public)
    with pytest.raises(errors.Unauthenticated):
        TASK.signed(RESEARCHER).verify(KEY.public)


def test_a_plan_reference_verifies_its_own_signature_only() -> None:
    PLAN.verify()
    with pytest.raises(errors.Unauthenticated):
        PLAN.model_copy(update={"id": "ac" * 32}).verify()
    with pytest.raises(errors.Unauthenticated):
        PLAN.model_copy(update={"signer": KEY.public}).verify()


def test_clients_ignore_what_they_do_not_know_and_the_server_refuses_it() -> None:
    receipt = device.UploadReceipt.model_validate({"state": "accepted", "sha256": "ab" * 32, "more": 1})
    assert not hasattr(receipt, "more")
    with pytest.raises(errors.InputError, match="there is no such field") as caught:
        read_message(CheckIn, b'{"more":1}')
    assert caught.value.details["errors"][0]["pointer"] == "/more"
    for place in ("plan", "initial"):
        value = {**EXPERIMENT, place: {**EXPERIMENT[place], "more": 1}}
        with pytest.raises(errors.InputError, match="unknown field 'more'"):
            read_message(ExperimentCreate, value)


@pytest.mark.parametrize(
    ("kind", "change", "pointer"),
    [
        (CheckIn, {"pending": ["task_1"]}, "/pending/0"),
        (CheckIn, {"pending": [ids.new_id(ids.DEVICE)]}, "/pending/0"),
        (CheckIn, {"pending": [ids.new_id(ids.TASK) + "\n"]}, "/pending/0"),
        (CheckIn, {"pending": [ids.new_id(ids.TASK)] * 65}, "/pending"),
        (CheckIn, {"protocol": []}, "/protocol"),
        (CheckIn, {"protocol": ["1"]}, "/protocol/0"),
        (CheckIn, {"capabilities": {"codecs": ["x" * 65]}}, "/capabilities/codecs/0"),
        (CheckIn, {"capabilities": {"sdk": "a\nb"}}, "/capabilities/sdk"),
        (CheckIn, {"capabilities": {"threads": 0}}, "/capabilities/threads"),
        (CheckIn, {"capabilities": {"threads": True}}, "/capabilities/threads"),
        (EnrolRequest, {"public_key": "AB" * 32, "schema_digest": "ab" * 32}, "/public_key"),
        (EnrolRequest, {"public_key": "ab" * 32, "schema_digest": "ab" * 31}, "/schema_digest"),
        (EnrolRequest, {"public_key": "ab" * 32, "schema_digest": "ab" * 32, "name": "a\tb"}, "/name"),
        (device.Progress, {"phase": "sleeping"}, "/phase"),
        (device.Abort, {"phase": "training", "code": "x", "detail": "x" * 2001}, "/detail"),
        (device.RetryWindow, {"min_ms": 2, "max_ms": 1}, "/"),
        (device.RetryWindow, {"min_ms": 1.5, "max_ms": 2}, "/min_ms"),
        (device.RetryWindow, {"min_ms": 0, "max_ms": 10**12}, "/max_ms"),
        (ExperimentCreate, {**EXPERIMENT, "population": "../etc"}, "/population"),
        (ExperimentCreate, {**EXPERIMENT, "population": "A"}, "/population"),
        (ExperimentCreate, {**EXPERIMENT, "name": ""}, "/name"),
        (ExperimentCreate, {**EXPERIMENT, "initial": {"sha256": "cd" * 32, "size": -1}}, "/initial/size"),
        (ExperimentCreate, {**EXPERIMENT, "server": {"name": "sgd", "parameters": {"lr": float("nan")}}}, "/server"),
        (ExperimentCreate, {**EXPERIMENT, "server": {"name": "sgd", "parameters": {"lr": "1"}}}, "/server"),
        (ExperimentCreate, {**EXPERIMENT, "hyper": {"a b": 1.0}}, "/hyper"),
        (control.PopulationCreate, {"name": "a", "data_schema": {}}, "/data_schema"),
        (control.TokenCreate, {"kind": "root"}, "/kind"),
        (control.TokenCreate, {"kind": "enrol", "expires_s": 0}, "/expires_s"),
    ],
)
def test_hostile_fields_are_refused_by_place(kind: type[BaseModel], change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        read_message(kind, change)
    assert caught.value.reason == "message_invalid"
    assert any((fault["pointer"] or "/").startswith(pointer) for fault in caught.value.details["errors"])
    assert "errors.pydantic.dev" not in str(caught.value)


def test_a_message_is_bounded_before_it_is_read() -> None:
    with pytest.raises(errors.InputError, match="exceeds the limit"):
        read_message(CheckIn, b" " * 100, limit=99)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(EXPERIMENT)), json_values)
def test_any_experiment_is_read_or_refused(name: str, value: Any) -> None:
    try:
        read_message(ExperimentCreate, {**EXPERIMENT, name: value})
    except errors.InputError as error:
        assert error.reason == "message_invalid"


def test_a_schema_travels_as_a_value() -> None:
    info = PopulationInfo(
        population="phones",
        data_schema=SCHEMA,
        schema_digest=SCHEMA.digest,
        signers=(KEY.public,),
        coordinator_key=KEY.public,
    )
    received = PopulationInfo.model_validate(over_the_wire(info))
    assert received == info and received.data_schema.digest == SCHEMA.digest


def test_a_secret_does_not_show() -> None:
    made = TokenCreated(
        id=ids.new_id(ids.TOKEN), kind="enrol", name="t", created_at=datetime.now(UTC), token="coterie_enrol_secret"
    )
    assert "secret" not in repr(made) and over_the_wire(made)["token"] == "coterie_enrol_secret"


def test_problems_tell_code_hint_and_faults() -> None:
    error = errors.InputError(
        "No.", hint="Do so.", code="message_invalid", errors=[{"pointer": "/a", "detail": "Input should be 1"}]
    )
    problem = Problem.of(error, title="Unprocessable Content", instance="/v1/x")
    received = Problem.model_validate(over_the_wire(problem))
    assert (received.type, received.status, received.code) == ("/problems/message-invalid", 422, "message_invalid")
    assert (received.detail, received.hint, received.errors[0].pointer) == ("No.", "Do so.", "/a")
    assert received.doc == error.doc


def test_pages_hold_their_items() -> None:
    page = Page[RoundView](items=(RoundView(experiment=ids.new_id(ids.EXPERIMENT), round=1, state="committed"),))
    assert Page[RoundView].model_validate(over_the_wire(page)) == page


def test_a_round_policy_has_sound_defaults() -> None:
    policy = RoundPolicy(rounds=10, cohort=8)
    assert (policy.min_updates, policy.tasks(), policy.evaluators(), policy.evaluation_seconds()) == (8, 8, 8, 600)
    assert policy.best == Best(metric="loss", mode="min") and policy.hyper(1) == {}
    assert RoundPolicy.model_validate(over_the_wire(policy)) == policy


@pytest.mark.parametrize(
    ("cohort", "over_selection", "tasks"),
    [(10, 1.0, 10), (10, 1.2, 12), (10, 1.25, 13), (10, 1.1, 11), (3, 1.5, 5), (1, 1.01, 2)],
)
def test_over_selection_rounds_up(cohort: int, over_selection: float, tasks: int) -> None:
    policy = RoundPolicy(rounds=1, cohort=cohort, min_updates=1, over_selection=over_selection)
    assert policy.tasks() == tasks


def test_a_dropout_and_a_concurrency_say_how_many_tasks_are_out() -> None:
    assert RoundPolicy(rounds=1, cohort=100, dropout=0.1).tasks() == 120
    assert RoundPolicy(rounds=1, cohort=10, mode="buffered").tasks() == 20
    assert RoundPolicy(rounds=1, cohort=10, mode="buffered", concurrency=4).tasks() == 4


def test_a_schedule_gives_one_value_per_round() -> None:
    policy = RoundPolicy(rounds=2, cohort=1, min_updates=1, hyper_schedule={"lr": (0.5, 0.25)})
    assert (policy.hyper(1), policy.hyper(2)) == ({"lr": 0.5}, {"lr": 0.25})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0}, "greater than or equal to 1"),
        ({"cohort": "8"}, "valid integer"),
        ({"cohort": 0, "min_updates": 1}, "greater than or equal to 1"),
        ({"min_updates": 9}, "min_updates 9 exceeds cohort 8"),
        ({"min_updates": 0}, "greater than or equal to 1"),
        ({"over_selection": 0.9}, "greater than or equal to 1"),
        ({"over_selection": float("inf")}, "finite number"),
        ({"deadline_s": 0}, "greater than 0"),
        ({"lease_s": -1}, "greater than 0"),
        ({"deadline_s": float("nan")}, "finite number"),
        ({"evaluate_every": -1}, "greater than or equal to 0"),
        ({"weight_cap": 0}, "greater than or equal to 1"),
        ({"patience": 0}, "greater than or equal to 1"),
        ({"hyper_schedule": {"lr": [0.1]}}, r"hyper_schedule\['lr'\] has 1 values for 2 rounds"),
        ({"target": {"metric": "accuracy", "value": float("nan")}}, "finite number"),
        ({"best": {"metric": "loss", "mode": "least"}}, "'min' or 'max'"),
        ({"rouns": 3}, "there is no such field. Did you mean rounds"),
        ({"dropout": 0.1, "over_selection": 1.2}, "give one of them"),
        ({"mode": "buffered", "dropout": 0.1}, "keep concurrency tasks out"),
        ({"mode": "buffered", "purpose": "evaluate"}, "has no buffer"),
        ({"mode": "buffered", "selection": "oort"}, "next device that asks"),
        ({"concurrency": 4}, "concurrency is for buffered rounds"),
        ({"purpose": "evaluate", "evaluate_every": 0}, "never evaluates"),
        ({"selection": "best; drop"}, "match pattern"),
        ({"staleness_exponent": float("inf")}, "finite number"),
    ],
)
def test_a_round_policy_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        read_message(RoundPolicy, {"rounds": 2, "cohort": 8, **change})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rounds": 0, "cohort": 2}, "/rounds: .*greater than or equal to 1.$"),
        ({"rounds": 1, "cohort": "x"}, "/cohort: .*valid integer.$"),
        ({"rounds": 1, "cohort": 2, "min_updates": 3}, "min_updates 3 exceeds cohort 2"),
        ({"rounds": 1, "cohort": 2, "round": 3}, "/round: there is no such field"),
    ],
)
def test_a_policy_made_by_hand_is_refused_in_our_own_words(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.InputError, match=said) as caught:
        RoundPolicy(**fields)
    assert caught.value.reason == "message_invalid"
    with pytest.raises(ValidationError):
        RoundPolicy.model_validate(fields)  # what FastAPI and messages around it rely on


def test_a_policy_needs_the_whole_cohort_unless_it_says_otherwise() -> None:
    assert RoundPolicy(rounds=1, cohort=7).min_updates == 7


def test_a_target_knows_its_direction() -> None:
    assert Target(metric="accuracy", value=0.9).mode == "max"
    with pytest.raises(errors.InputError, match="This is not a valid Target: /mode"):
        Target(metric="accuracy", value=0.9, mode="up")  # pyright: ignore[reportArgumentType]
