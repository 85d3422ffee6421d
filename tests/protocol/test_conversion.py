"""Values as JSON and back: what is written, what is refused, and where a refusal says that the fault lies."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from coterie import errors
from coterie.protocol.conversion import (
    FiniteOrNull,
    Sorted,
    UnlessEmpty,
    UnlessNone,
    from_json,
    from_text,
    to_json,
    to_text,
)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    size: Annotated[int, Field(ge=1)]
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.size == 13:
            raise errors.DataError("A part of 13 is none.", code="thirteen")


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    parts: tuple[Part, ...] = ()
    colour: Colour | None = None
    key: bytes = b""
    by_place: Mapping[int, Part] = field(default_factory=dict[int, Part])
    alive: Sorted[int] = frozenset()
    loss: FiniteOrNull | None = None
    hidden: Annotated[str | None, UnlessNone] = None
    spans: Annotated[tuple[tuple[int, int], ...], UnlessEmpty] = ()
    format: Literal["whole-1"] = "whole-1"


FULL = Whole(
    name="w", parts=(Part(2), Part(3, 0.5)), colour=Colour.RED, key=b"\xff\x00", by_place={7: Part(1)},
    alive=frozenset((9, 1, 5)), loss=0.25, hidden="h", spans=((0, 2),),
)  # fmt: skip
PLAIN: dict[str, Any] = to_json(Whole(name="w"))


def read(value: object) -> Whole:
    return from_json(Whole, value, code="whole_invalid")


def test_a_value_is_its_fields_and_comes_back() -> None:
    assert to_json(FULL) == {
        "name": "w",
        "parts": [{"size": 2, "share": 1.0}, {"size": 3, "share": 0.5}],
        "colour": "red",
        "key": "ff00",
        "by_place": {"7": {"size": 1, "share": 1.0}},
        "alive": [1, 5, 9],
        "loss": 0.25,
        "hidden": "h",
        "spans": [[0, 2]],
        "format": "whole-1",
    }
    assert read(json.loads(json.dumps(to_json(FULL)))) == FULL
    assert from_text(Whole, to_text(FULL)) == FULL
    assert "hidden" not in PLAIN and "spans" not in PLAIN
    assert read(PLAIN) == from_text(Whole, '{"name": "w"}') == Whole(name="w")


def test_numbers_that_json_lacks() -> None:
    assert to_json(Whole(name="w", loss=math.inf))["loss"] is None
    back = from_text(Part, to_text(Part(1, math.nan)))
    assert math.isnan(back.share) and from_text(Part, to_text(Part(1, -math.inf))).share == -math.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parts": [{"size": 1, "share": 1}, {"size": "2", "share": 1}]}, "/parts/1/size: Input should be a valid int"),
        ({"parts": [{"size": True, "share": 1}]}, "/parts/0/size: "),
        ({"parts": [{"size": 1.0, "share": 1}]}, "/parts/0/size: "),
        ({"parts": [{"size": 0, "share": 1}]}, "/parts/0/size: Input should be greater than or equal to 1"),
        ({"parts": [{"size": 1}]}, "/parts/0/share: Field required"),
        ({"parts": [{"size": 1, "share": math.nan}]}, "holds what JSON cannot"),
        ({"parts": None}, "/parts: "),
        ({"parts": {}}, "/parts: "),
        ({"colour": "blue"}, "/colour: "),
        ({"key": "zz"}, "/key: "),
        ({"key": "FF"}, "/key: this is not how such a value is written"),
        ({"by_place": {"x": {"size": 1, "share": 1}}}, "/by_place/x/"),
        ({"alive": [2, 1]}, "/alive/0: this is not how such a value is written"),
        ({"hidden": None}, "/hidden: leave it out"),
        ({"spans": []}, "/spans: leave it out"),
        ({"format": "whole-2"}, "/format: Input should be 'whole-1'"),
        ({"nmae": 1}, "/nmae: there is no such field. Did you mean name?"),
        ({"name": {1}}, "holds what JSON cannot"),
    ],
)
def test_what_is_no_such_value_is_refused_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        read({**PLAIN, **change})
    assert words in str(caught.value) and caught.value.reason == "whole_invalid"
    assert str(caught.value).startswith("This is not a valid Whole: ")


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_each_field_must_be_there(name: str) -> None:
    with pytest.raises(errors.InputError, match=f"/{name}: Field required"):
        read({key: value for key, value in PLAIN.items() if key != name})


@pytest.mark.parametrize("value", [None, 3, "w", [], [PLAIN]], ids=str)
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(errors.InputError, match="not a valid Whole") as caught:
        read(value)
    assert caught.value.reason == "whole_invalid"


def test_a_refusal_is_of_the_class_and_code_asked_for() -> None:
    part = {"size": 13, "share": 1}
    with pytest.raises(errors.PlanRefused, match="Whole: A part of 13 is none") as caught:
        from_json(Whole, {**PLAIN, "parts": [part]}, refusal=errors.PlanRefused, code="plan_manifest")
    assert caught.value.reason == "plan_manifest"
    with pytest.raises(errors.DataError) as own:
        from_json(Part, part, refusal=errors.DataError, code="other")
    assert own.value.reason == "thirteen"
    with pytest.raises(errors.InputError) as stored:
        from_text(Whole, "{")
    assert stored.value.reason == "stored_invalid"


def test_a_refusal_does_not_tell_values() -> None:
    with pytest.raises(errors.InputError) as caught:
        read({**PLAIN, "parts": [{"size": "a secret", "share": 1}]})
    assert "secret" not in f"{caught.value} {caught.value.details}" and caught.value.__cause__ is None
