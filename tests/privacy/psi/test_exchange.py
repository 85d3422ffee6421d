"""The whole exchange: its result is the intersection and nothing else, and what was changed on its way is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psi_kit import both

from coterie.errors import Conflict, InputError
from coterie.privacy.psi import exchange, machine
from coterie.privacy.psi.blinding import PsiKey
from coterie.privacy.psi.exchange import OwnPoints
from coterie.privacy.psi.messages import HEAD_BYTES, MAGIC, PsiKind, PsiMessage

ids = st.lists(st.binary(max_size=3), min_size=1, max_size=12, unique=True)
A = [f"a{number}".encode() for number in range(20)] + [f"common{number}".encode() for number in range(15)]
B = [f"common{number}".encode() for number in reversed(range(15))] + [f"b{number}".encode() for number in range(9)]


@settings(deadline=None, max_examples=40)
@given(one=ids, other=ids)
def test_the_result_is_the_intersection_in_one_order(one: list[bytes], other: list[bytes]) -> None:
    common = {*one} & {*other}
    first, second, *_ = both(one, other)
    if not common:
        assert first.is_refused and second.is_refused and first.rows is None
        return
    found: list[bytes] = [one[row] for row in first.rows]
    assert found == [other[row] for row in second.rows]
    assert len(found) == len(common) == first.count == second.count and {*found} == common


def test_buckets_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (exchange, machine):
        monkeypatch.setattr(module, "BUCKET", 7)
    first, second, wire, _ = both(A, B)
    assert [A[row] for row in first.rows] == [B[row] for row in second.rows] and first.count == 15
    assert [m.head.items for m in wire.sent if m.head.kind is PsiKind.POINTS] == [7] * 5


@pytest.mark.parametrize("told", ["a", "b"])
@pytest.mark.parametrize("result", ["rows", "count"])
def test_who_is_not_told_is_shown_nothing_but_points_and_a_verdict(told: str, result: Any) -> None:
    first, second, *wires = both(A, B, told=told, result=result)
    knows, other = (first, second) if told == "a" else (second, first)
    assert knows.count == 15 and (other.count, other.rows) == (None, None)
    mine = A if told == "a" else B
    assert knows.rows is None if result == "count" else {mine[row] for row in knows.rows} == {*A} & {*B}
    shown = [message.head.kind for message in wires["ab".index(told)].sent]
    assert shown == [PsiKind.HELLO, PsiKind.POINTS, PsiKind.ENOUGH]


def test_a_count_shows_no_link_to_anybody() -> None:
    first, second, *wires = both(A, B, result="count")
    assert (first.count, second.count, first.rows, second.rows) == (15, 15, None, None)
    assert PsiKind.LINKS not in {message.head.kind for wire in wires for message in wire.sent}


@pytest.mark.parametrize("told", ["", "a", "b"])
def test_below_the_minimum_nothing_more_is_shown(told: str) -> None:
    first, second, *wires = both(A, B, minimum=16, told=told)
    for found in (first, second):
        assert (found.is_refused, found.count, found.rows) == (True, None, None)
    last = [message for wire in wires for message in wire.sent if message.head.kind in (PsiKind.FEW, PsiKind.ENOUGH)]
    assert {message.head.kind for message in last} == {PsiKind.FEW} and all(not message.body for message in last)
    assert PsiKind.LINKS not in {message.head.kind for wire in wires for message in wire.sent}
    enough, *_ = both(A, B, minimum=15, told=told)
    assert not enough.is_refused


def test_two_runs_show_nothing_alike() -> None:
    runs = [both(A, B)[2] for _ in range(2)]
    one, other = (wire.sent[1].body for wire in runs)
    width = 32
    assert not {one[p : p + width] for p in range(0, len(one), width)} & {
        other[p : p + width] for p in range(0, len(other), width)
    }


HELLO, POINTS, TAGS, VERDICT, LINKS = range(5)


def of(number: int, change: Callable[[bytes], bytes]) -> Callable[[int, bytes], bytes]:
    return lambda at, data: change(data) if at == number else data


def flipped(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]


def swapped_items(width: int) -> Callable[[bytes], bytes]:
    def swap(data: bytes) -> bytes:
        one, other = data[HEAD_BYTES : HEAD_BYTES + width], data[HEAD_BYTES + width : HEAD_BYTES + 2 * width]
        return data[:HEAD_BYTES] + other + one + data[HEAD_BYTES + 2 * width :]

    return swap


def doubled(width: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:HEAD_BYTES] + data[HEAD_BYTES : HEAD_BYTES + width] * 2 + data[HEAD_BYTES + 2 * width :]


JOB, KIND, ITEMS, BUCKET_PLACE = HEAD_BYTES - 1, len(MAGIC) + 1, len(MAGIC) + 9, len(MAGIC) + 5
LIES: dict[str, tuple[int, Callable[[bytes], bytes], str]] = {
    "no message": (POINTS, lambda data: b"", "psi_message"),
    "another protocol": (POINTS, flipped(0), "psi_message"),
    "another version": (POINTS, flipped(len(MAGIC)), "psi_message"),
    "first words of another version": (HELLO, flipped(len(MAGIC)), "psi_message"),
    "first words with a space": (HELLO, lambda data: data.replace(b":", b": ", 1), "psi_message"),
    "first words that are none": (HELLO, lambda data: data[:HEAD_BYTES] + b"{}", "psi_message"),
    "an unknown kind": (POINTS, lambda data: data[:KIND] + b"\x63" + data[KIND + 1 :], "psi_message"),
    "points of another job": (POINTS, flipped(JOB), "psi_message"),
    "tags of another job": (TAGS, flipped(JOB), "psi_message"),
    "a verdict of another job": (VERDICT, flipped(JOB), "psi_message"),
    "links of another job": (LINKS, flipped(JOB), "psi_message"),
    "another bucket": (POINTS, flipped(BUCKET_PLACE), "psi_message"),
    "more items than there are": (POINTS, flipped(ITEMS), "psi_message"),
    "a point less": (
        POINTS,
        lambda data: data[:ITEMS] + bytes((data[ITEMS] - 1,)) + data[ITEMS + 1 : -32],
        "psi_message",
    ),
    "points that are cut off": (POINTS, lambda data: data[:-1], "psi_message"),
    "one point twice": (POINTS, doubled(32), "psi_points"),
    "a zero point": (POINTS, lambda data: data[:-32] + bytes(32), "psi_points"),
    "tags that do not rise": (TAGS, swapped_items(16), "psi_points"),
    "one tag twice": (TAGS, doubled(16), "psi_points"),
    "other common tags": (VERDICT, flipped(HEAD_BYTES), "psi_verdict"),
    "the other verdict": (
        VERDICT,
        lambda data: (data[:KIND] + bytes((PsiKind.FEW,)) + data[KIND + 1 :])[:HEAD_BYTES],
        "psi_verdict",
    ),
    "a verdict without its digest": (VERDICT, lambda data: data[:HEAD_BYTES], "psi_message"),
    "one link twice": (LINKS, doubled(4), "psi_points"),
    "a link out of range": (LINKS, lambda data: data[:HEAD_BYTES] + b"\xff" + data[HEAD_BYTES + 1 :], "psi_points"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_was_changed_is_refused(lie: str) -> None:
    number, change, code = LIES[lie]
    _, found, *_ = both(A, B, change=of(number, change))
    assert isinstance(found, InputError) and found.reason == code, found
    told = f"{found.message} {found.hint}"
    assert not any(each.decode() in told for each in (*A, *B))


@pytest.mark.parametrize("number", [POINTS, TAGS, VERDICT, LINKS])
def test_a_message_again_in_place_of_the_next_is_refused(number: int) -> None:
    sent: list[bytes] = []

    def again(at: int, data: bytes) -> bytes:
        sent.append(data)
        return sent[number - 1] if at == number else data

    _, found, *_ = both(A, B, change=again)
    assert isinstance(found, InputError) and found.reason == "psi_message", found


def test_messages_of_an_earlier_run_are_refused() -> None:
    recorded: list[PsiMessage] = both(A, B)[2].sent
    for number in (POINTS, TAGS, VERDICT, LINKS):
        _, found, *_ = both(A, B, change=of(number, lambda _, n=number: recorded[n].to_bytes()))
        assert isinstance(found, InputError) and "of another job" in found.message


def test_own_first_words_sent_back_are_refused() -> None:
    _, found, *_ = both(A, A, change=of(HELLO, lambda data: data.replace(b'"role":"a"', b'"role":"b"')))
    assert isinstance(found, InputError) and found.reason == "psi_message"


def test_a_program_that_takes_hashes_for_points_is_found_out() -> None:
    def raw(key: PsiKey, its_ids: list[bytes]) -> OwnPoints:
        hashed = b"".join((each * 32)[:31] + b"\0" for each in its_ids)
        return OwnPoints.of(hashed)

    _, found, *_ = both(A, B, points=raw)
    assert isinstance(found, InputError) and found.reason == "psi_points" and "not on the curve" in found.message


def test_terms_that_differ_are_named_at_both() -> None:
    change = of(HELLO, lambda data: data.replace(b'"rules":["nfc"]', b'"rules":["strip"]'))
    _, found, *_ = both(A, B, change=change)
    assert isinstance(found, Conflict) and found.reason == "psi_terms"
    assert "the rules for ids are strip, not nfc" in found.message
