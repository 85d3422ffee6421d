"""One grammar for every text of the form name(number, ...)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.calls import Call, Parameter, name_of, read_call

RULES = {
    "plain": (),
    "krum": (Parameter("f", 0, most=9),),
    "oort": (Parameter("share", 0, 0.5, whole=False, most=1), Parameter("seconds", 0, 7, whole=False)),
}


def refuse(why: str) -> errors.CoterieError:
    return errors.InputError(why, code="call_invalid")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("plain", {}),
        ("plain()", {}),
        ("krum(2)", {"f": 2}),
        (" krum( f = 2 ) ", {"f": 2}),
        ("krum(2e0)", {"f": 2}),
        ("oort", {"share": 0.5, "seconds": 7}),
        ("oort(1)", {"share": 1, "seconds": 7}),
        ("oort(seconds=1.5)", {"share": 0.5, "seconds": 1.5}),
        ("oort(0.25,3)", {"share": 0.25, "seconds": 3}),
    ],
)
def test_numbers_come_by_position_by_name_or_by_default(text: str, numbers: dict[str, float]) -> None:
    call = read_call(text, RULES, refuse)
    assert dict(call.numbers) == numbers
    assert call.name == name_of(text)


@given(st.floats(0, 1), st.floats(0, 1e300))
def test_the_text_of_a_call_means_the_same_call(share: float, seconds: float) -> None:
    call = Call("oort", {"share": share, "seconds": seconds})
    assert read_call(call.text, RULES, refuse) == call


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not of the form"),
        ("krum(2", "not of the form"),
        ("krum(2)(3)", "not of the form"),
        ("Krum(2)", "not of the form"),
        ("median", "there is no 'median'; there are plain, krum, oort"),
        ("plain(1)", "plain takes no number"),
        ("krum", r"krum needs f, as in krum\(1\)"),
        ("krum(1,2)", "krum takes no more numbers than f"),
        ("krum(1.5)", "a whole number of at least 0 and at most 9, not '1.5'"),
        ("krum(10)", "at most 9"),
        ("krum(-1)", "not '-1'"),
        ("krum(nan)", "not 'nan'"),
        ("krum(1_0)", "not '1_0'"),
        ("krum(,)", "takes no more numbers than f"),
        ("oort(0.5, share=0.5)", "has no parameter 'share' or has it twice"),
        ("oort(speed=1)", "has no parameter 'speed'"),
        ("oort(seconds=1e999)", "a number of at least 0"),
    ],
)
def test_a_text_that_cannot_be_read_says_why(text: str, why: str) -> None:
    with pytest.raises(errors.InputError, match=why):
        read_call(text, RULES, refuse)
