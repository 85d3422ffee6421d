"""What may be asked for, and that nothing else may."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ExperimentError
from coterie.privacy.dp.privacy import AdaptiveClip, ExampleLevel, LocalLevel, Privacy, UserLevel, from_json

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
    text = json.dumps(value.to_json(), allow_nan=False)
    assert from_json(json.loads(text)) == value
    assert json.dumps(from_json(json.loads(text)).to_json()) == text


def test_whole_numbers_and_floats_are_one_value() -> None:
    one = UserLevel(clip=1, delta=1e-5, epsilon=8, schedule=(1, 2))
    other = UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, schedule=(1.0, 2.0))
    assert one == other and json.dumps(one.to_json()) == json.dumps(other.to_json())


USER: dict[str, Any] = {"level": "user", "clip": 1.0, "delta": 1e-5, "epsilon": 8.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"clip": 0.0}, "clip must be"),
    ({"clip": float("nan")}, "clip must be"),
    ({"clip": True}, "clip must be"),
    ({"clip": 10**400}, "clip must be"),
    ({"delta": 0.5}, "delta must be"),
    ({"delta": 0}, "delta must be"),
    ({"epsilon": -1}, "epsilon must be"),
    ({"epsilon": None}, "exactly one of epsilon and noise_multiplier, not neither"),
    ({"noise_multiplier": 1.0}, "not both"),
    ({"mechanism": "laplace"}, "mechanism must be one of"),
    ({"min_separation": 0}, "min_separation must be"),
    ({"min_separation": 2.5}, "min_separation must be"),
    ({"max_participations": True}, "max_participations must be"),
    ({"schedule": []}, "schedule must be"),
    ({"schedule": [1.0, -1.0]}, "schedule must be"),
    ({"schedule": [1.0], "mechanism": "blt", "min_separation": 2}, "leave schedule out"),
    ({"mechanism": "blt"}, "gains nothing where a device may take part in every round"),
    ({"mechanism": "banded", "max_participations": 2}, "needs rounds between"),
    ({"bands": 3}, "leave bands out"),
    ({"mechanism": "banded", "min_separation": 4, "bands": 5}, "bands 5 exceed min_separation 4"),
    ({"mechanism": "toeplitz", "min_separation": 4, "adaptive": {}}, "leave adaptive out"),
    ({"adaptive": {"quantile": 1.0}}, "quantile must be"),
    ({"adaptive": {"speed": 1.0}}, "AdaptiveClip has no field 'speed'"),
    ({"adaptive": 3}, "privacy.adaptive must be a JSON object"),
    ({"colour": "red"}, "no field 'colour'"),
    ({"level": "group"}, "no level 'group'"),
    ({"level": "local"}, "no field 'clip'|lacks|mechanism"),
]


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_what_is_not_possible_is_refused_by_name(place: int) -> None:
    change, message = REFUSED[place]
    with pytest.raises(ExperimentError, match=message) as caught:
        from_json({**USER, **change})
    assert caught.value.reason == "privacy_invalid"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"level": "local", "mechanism": "gaussian", "epsilon": 1.0}, "needs a delta above 0"),
        ({"level": "local", "mechanism": "sign_ds", "epsilon": 1.0, "delta": 1e-5}, "it is pure"),
        ({"level": "local", "mechanism": "sign_ds", "epsilon": 1.0, "top": 0.7}, "top must be"),
        ({"level": "example", "clip": 1.0, "delta": 1e-5, "epsilon": 1.0, "max_batch": 0}, "max_batch must be"),
        ({"level": "user"}, "lacks 'clip' and 'delta'"),
        ([], "must be a JSON object"),
        (None, "must be a JSON object"),
    ],
    ids=range(7),
)
def test_other_levels_likewise(value: object, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        from_json(value)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=8), lambda inner: st.lists(inner)))
def test_no_value_of_a_field_gets_past_the_checks_by_its_type(value: object) -> None:
    for field in ("clip", "delta", "epsilon", "mechanism", "adaptive", "min_separation", "bands", "schedule"):
        try:
            made = from_json({**USER, field: value})
        except ExperimentError:
            continue
        assert from_json(made.to_json()) == made
