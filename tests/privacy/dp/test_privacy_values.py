"""What may be asked for, and that nothing else may."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from coterie.errors import InputError
from coterie.protocol.privacy import AdaptiveClip, ExampleLevel, LocalLevel, Privacy, UserLevel, WirePrivacy

WIRE: TypeAdapter[Privacy] = TypeAdapter(cast(Any, WirePrivacy))
VALUES: list[Privacy] = [
    UserLevel(clip=1, delta=1e-5, epsilon=8),
    UserLevel(clip=0.3, delta=1e-6, noise_multiplier=1.1, adaptive=AdaptiveClip(quantile=0.7), schedule=(1.0, 0.5)),
    UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, mechanism="banded", min_separation=20, bands=10),
    UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, mechanism="blt", max_participations=3, buffers=2),
    ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, max_batch=64),
    LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-5, clip=2.0),
    LocalLevel(mechanism="sign_ds", epsilon=4, top=0.05, outputs=7),
]


@pytest.mark.parametrize("place", range(len(VALUES)))
def test_values_survive_json(place: int) -> None:
    value = VALUES[place]
    text = json.dumps(value.model_dump(mode="json"), allow_nan=False)
    assert WIRE.validate_json(text) == value and hash(WIRE.validate_json(text)) == hash(value)
    assert json.dumps(WIRE.validate_json(text).model_dump(mode="json")) == text
    assert value.but() == value


def test_whole_numbers_and_floats_are_one_value() -> None:
    one = UserLevel(clip=1, delta=1e-5, epsilon=8, schedule=(1, 2))
    other = UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, schedule=(1.0, 2.0))
    assert one == other and one.model_dump_json() == other.model_dump_json()


LEVELS: dict[str, tuple[type[Privacy], dict[str, Any]]] = {
    "user": (UserLevel, {"clip": 1.0, "delta": 1e-5, "epsilon": 8.0}),
    "example": (ExampleLevel, {"clip": 1.0, "delta": 1e-5, "epsilon": 8.0}),
    "local": (LocalLevel, {"mechanism": "gaussian", "delta": 1e-5, "epsilon": 8.0}),
}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("user", {"clip": 0.0}, "/clip: Input should be greater than 0"),
    ("user", {"clip": float("nan")}, "/clip: Input should be a finite number"),
    ("user", {"clip": True}, "/clip: Input should be a valid number"),
    ("user", {"clip": 10**400}, "/clip: "),
    ("user", {"delta": 0.5}, "/delta: Input should be less than or equal to 0.01"),
    ("user", {"delta": 0}, "/delta: Input should be greater than 0"),
    ("user", {"epsilon": -1}, "/epsilon: "),
    ("user", {"epsilon": None}, "exactly one of epsilon and noise_multiplier, not neither"),
    ("user", {"noise_multiplier": 1.0}, "not both"),
    ("user", {"mechanism": "laplace"}, "/mechanism: Input should be 'gaussian'"),
    ("user", {"min_separation": 0}, "/min_separation: "),
    ("user", {"min_separation": 2.5}, "/min_separation: "),
    ("user", {"max_participations": True}, "/max_participations: "),
    ("user", {"schedule": ()}, "/schedule: "),
    ("user", {"schedule": (1.0, -1.0)}, "/schedule/1: "),
    ("user", {"schedule": (1.0,), "mechanism": "blt", "min_separation": 2}, "leave schedule out"),
    ("user", {"mechanism": "blt"}, "gains nothing where a device may take part in every round"),
    ("user", {"mechanism": "banded", "max_participations": 2}, "needs rounds between"),
    ("user", {"bands": 3}, "leave bands out"),
    ("user", {"mechanism": "banded", "min_separation": 4, "bands": 5}, "bands 5 exceed min_separation 4"),
    ("user", {"mechanism": "toeplitz", "min_separation": 4, "adaptive": AdaptiveClip()}, "leave adaptive out"),
    ("user", {"adaptive": {"quantile": 1.0}}, "/adaptive/quantile: "),
    ("user", {"adaptive": {"speed": 1.0}}, "/adaptive/speed: there is no such field"),
    ("user", {"adaptive": 3}, "/adaptive: "),
    ("user", {"colour": "red"}, "/colour: there is no such field"),
    ("user", {"level": "local"}, "/level: Input should be 'user'"),
    ("local", {"delta": 0.0}, "needs a delta above 0"),
    ("local", {"mechanism": "sign_ds"}, "it is pure"),
    ("local", {"mechanism": "sign_ds", "delta": 0.0, "top": 0.7}, "/top: "),
    ("example", {"max_batch": 0}, "/max_batch: "),
]


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_what_is_not_possible_is_refused_by_name_in_python_and_on_the_wire(place: int) -> None:
    level, change, message = REFUSED[place]
    kind, fields = LEVELS[level]
    with pytest.raises(InputError) as caught:
        kind(**{**fields, **change})
    assert caught.value.reason == "message_invalid" and message in caught.value.message
    with pytest.raises(ValidationError):
        WIRE.validate_python({"level": level, **fields, **change})


@pytest.mark.parametrize("value", [{"level": "group"}, {"level": "user"}, {"clip": 1.0}, [], None, 3])
def test_what_is_no_privacy_is_not_taken_from_the_wire(value: object) -> None:
    with pytest.raises(ValidationError):
        WIRE.validate_python(value)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=8), lambda inner: st.lists(inner)))
def test_no_value_of_a_field_gets_past_the_checks_by_its_type(value: object) -> None:
    for field in ("clip", "delta", "epsilon", "mechanism", "adaptive", "min_separation", "bands", "schedule"):
        try:
            made = WIRE.validate_python({"level": "user", **LEVELS["user"][1], field: value})
        except ValidationError:
            continue
        assert WIRE.validate_json(made.model_dump_json()) == made
