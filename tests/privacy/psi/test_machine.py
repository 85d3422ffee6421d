"""The table of the exchange: what may come when, and that nothing happens where something else does."""

from dataclasses import replace

import pytest
from psi_kit import hello

from coterie.errors import Conflict, InputError
from coterie.privacy.psi.machine import (
    DUE,
    TRANSITIONS,
    PsiPart,
    PsiPhase,
    PsiState,
    begin,
    greet,
    heed,
    judge,
    step,
)
from coterie.privacy.psi.messages import (
    BUCKET,
    HEAD_BYTES,
    WIDTHS,
    PsiHead,
    PsiKind,
    PsiMessage,
    PsiResult,
    job_of,
    most_bytes,
    read_hello,
    read_psi_message,
)

ROWS = [(part, result) for part, result in TRANSITIONS]
VERDICTS = (PsiKind.ENOUGH, PsiKind.FEW)


def state_in(part: PsiPart, result: PsiResult, phase: PsiPhase) -> PsiState:
    """A party with five ids, in a phase of a job with one that has five as well."""
    told = {PsiPart.BOTH: "", PsiPart.TOLD: "a", PsiPart.TELLING: "b"}[part]
    own, other = (hello(role, 5, told=told, result=result) for role in "ab")
    return replace(begin(own), phase=phase, other=other, job=job_of(own, other), verdict=b"\x05")


@pytest.mark.parametrize(("part", "result"), ROWS)
def test_every_phase_that_is_entered_is_in_the_table_or_an_end(part: PsiPart, result: PsiResult) -> None:
    table = TRANSITIONS[part, result]
    entered = {phase for row in table.values() for phase in row.values()} | {PsiPhase.GREETING}
    assert entered - set(table) <= {PsiPhase.DONE, PsiPhase.REFUSED, PsiPhase.LINKING}
    assert set(table) <= entered
    assert begin(state_in(part, result, PsiPhase.GREETING).own).part is part


def test_who_is_told_is_shown_links_and_who_is_not_is_not() -> None:
    for (part, result), table in TRANSITIONS.items():
        shown = {kind for row in table.values() for kind in row}
        assert (PsiKind.LINKS in shown) == (result == "rows" and part is not PsiPart.TELLING)
        assert (PsiKind.TAGS in shown) == (part is not PsiPart.TELLING)
        # Links are shown after a verdict alone, and in no phase before it.
        assert (DUE[part].get(PsiPhase.LINKING) == "links") == (part is not PsiPart.TOLD)
        assert "links" not in {DUE[part].get(phase) for phase in PsiPhase if phase is not PsiPhase.LINKING}


@pytest.mark.parametrize("kind", [*PsiKind])
@pytest.mark.parametrize("phase", [*PsiPhase])
@pytest.mark.parametrize(("part", "result"), ROWS)
def test_what_the_table_lacks_is_refused(part: PsiPart, result: PsiResult, phase: PsiPhase, kind: PsiKind) -> None:
    state = state_in(part, result, phase)
    if kind in TRANSITIONS[part, result].get(phase, {}):
        return
    head = PsiHead(kind=kind, job=state.job, items=5)
    with pytest.raises(InputError) as refused:
        if kind is PsiKind.HELLO:
            greet(state, PsiMessage(head, b""))
        elif kind in VERDICTS:
            heed(state, PsiMessage(head, b""))
        else:
            step(state, head)
    assert refused.value.reason == "psi_message" and kind.name.lower() in refused.value.message


def test_a_phase_ends_with_the_last_item() -> None:
    state = state_in(PsiPart.BOTH, "rows", PsiPhase.BLINDING)
    whole = PsiHead(kind=PsiKind.POINTS, job=state.job, items=5)
    assert step(state, whole).phase is PsiPhase.MIXING
    for wrong in (replace(whole, items=4), replace(whole, items=6), replace(whole, bucket=1), replace(whole, items=0)):
        with pytest.raises(InputError) as refused:
            step(state, wrong)
        assert refused.value.reason == "psi_message"


def test_the_larger_minimum_holds_and_a_count_at_it_is_enough() -> None:
    state = state_in(PsiPart.BOTH, "rows", PsiPhase.COUNTING)
    assert state.other is not None
    state = replace(state, own=replace(state.own, minimum=3), other=replace(state.other, minimum=4))
    assert state.minimum == 4
    assert [judge(state, count, bytes(32))[1].head.kind for count in (3, 4)] == [PsiKind.FEW, PsiKind.ENOUGH]


def test_heads_and_first_words_come_back_from_their_bytes() -> None:
    said = hello("clinic", 7, minimum=3, told="clinic", rules=("nfc", "strip"))
    message = read_psi_message(PsiMessage(PsiHead(kind=PsiKind.HELLO), said.to_bytes()).to_bytes())
    assert read_hello(message) == said
    for kind, width in WIDTHS.items():
        head = PsiHead(kind=kind, job=bytes(range(32)), bucket=9, items=3)
        data = head.to_bytes() + bytes(3 * width)
        assert read_psi_message(data) == PsiMessage(head, bytes(3 * width)) and len(head.to_bytes()) == HEAD_BYTES
    assert most_bytes() == HEAD_BYTES + BUCKET * max(WIDTHS.values())


def test_the_job_is_the_same_at_both_and_another_with_other_words() -> None:
    one, other = hello("a", 5), hello("b", 5)
    assert job_of(one, other) == job_of(other, one)
    assert len({job_of(one, other), job_of(hello("a", 5), other), job_of(replace(one, ids=6), other)}) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": 2}, "an id has 2 columns, not 1"),
        ({"rules": ()}, "the rules for ids are none, not nfc"),
        ({"result": "count"}, "the result is count, not rows"),
        ({"told": "b"}, "it is told to b, not to both"),
    ],
)
def test_terms_must_be_the_same(changes: dict[str, object], words: str) -> None:
    message = PsiMessage(PsiHead(kind=PsiKind.HELLO), hello("b", 5, **changes).to_bytes())
    with pytest.raises(Conflict) as refused:
        greet(begin(hello("a", 5)), message)
    assert refused.value.reason == "psi_terms" and words in refused.value.message
