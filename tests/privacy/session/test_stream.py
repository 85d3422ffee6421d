"""A sealed message opens in its own place, whole and unchanged, however it is cut on its way; otherwise not at all."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ArgumentValueError, InputError
from coterie.privacy.session import stream
from coterie.protocol.session import MessageHeader

PAIR = bytes(range(32))
HEADER = MessageHeader(session="ses_" + "0" * 32, stage="rows", sender="owner", recipient="feature", sequence=3)
STEP = stream.CHUNK + stream.TAG
NEAR = [max(0, chunks * stream.CHUNK + more) for chunks in range(4) for more in range(-20, 21)]
sizes = st.one_of(st.sampled_from(NEAR), st.integers(0, 200))


def body(size: int) -> bytes:
    """Some bytes of which no two chunks are alike."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))[:size]


def seal(data: bytes, cuts: list[int] | None = None, header: MessageHeader = HEADER) -> bytes:
    """A sealed message, fed in pieces."""
    state, out = stream.begin(PAIR, header)
    for first, stop in pairwise([0, *sorted(cuts or []), len(data)]):
        state, more = stream.feed(state, data[first:stop])
        out += more
    return out + stream.finish(state)


def unseal(data: bytes, cuts: list[int] | None = None, header: MessageHeader = HEADER, pair: bytes = PAIR) -> bytes:
    """What a sealed message says, taken in pieces."""
    state, out = stream.expect(header), b""
    for first, stop in pairwise([0, *sorted(cuts or []), len(data)]):
        state, more = stream.take(state, pair, data[first:stop])
        out += more
    return out + stream.close(state)


def assert_closed(data: bytes, header: MessageHeader = HEADER, pair: bytes = PAIR) -> None:
    with pytest.raises(InputError) as caught:
        unseal(data, header=header, pair=pair)
    assert caught.value.reason == "session_seal"


def chunks_of(sealed: bytes) -> list[bytes]:
    """The sealed chunks, without the salt."""
    return [sealed[first : first + STEP] for first in range(stream.SALT, len(sealed), STEP)]


@given(sizes, st.data())
def test_a_message_opens_however_it_is_cut_and_has_the_size_foretold(size: int, data: st.DataObject) -> None:
    said = body(size)
    sealed = seal(said, data.draw(st.lists(st.integers(0, size), max_size=4)))
    assert len(sealed) == stream.SALT + size + stream.TAG * max(1, -(-size // stream.CHUNK))
    assert unseal(sealed, data.draw(st.lists(st.integers(0, len(sealed)), max_size=4))) == said


@given(sizes, st.data())
def test_a_message_that_is_cut_off_anywhere_does_not_open(size: int, data: st.DataObject) -> None:
    sealed = seal(body(size))
    ends = [stream.SALT + number * STEP for number in range(len(chunks_of(sealed)))]
    cut = data.draw(st.one_of(st.integers(0, len(sealed) - 1), st.sampled_from(ends)))
    assert_closed(sealed[:cut])


@given(sizes, st.data())
def test_a_message_with_one_byte_changed_or_more_bytes_does_not_open(size: int, data: st.DataObject) -> None:
    sealed = seal(body(size))
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert_closed(bytes(changed))
    assert_closed(sealed + data.draw(st.binary(min_size=1, max_size=20)))


@given(st.integers(2 * stream.CHUNK + 1, 4 * stream.CHUNK), st.data())
def test_chunks_in_another_order_twice_or_left_out_do_not_open(size: int, data: st.DataObject) -> None:
    sealed = seal(body(size))
    chunks = chunks_of(sealed)
    order = data.draw(st.lists(st.sampled_from(range(len(chunks))), max_size=len(chunks) + 1))
    if order != list(range(len(chunks))):
        assert_closed(sealed[: stream.SALT] + b"".join(chunks[number] for number in order))


@given(st.integers(2 * stream.CHUNK, 3 * stream.CHUNK))
def test_a_chunk_of_another_message_to_the_same_place_does_not_open(size: int) -> None:
    one, other = seal(body(size)), seal(body(size))
    assert one[: stream.SALT] != other[: stream.SALT]
    assert_closed(one[: stream.SALT + STEP] + other[stream.SALT + STEP :])


@pytest.mark.parametrize(
    "change",
    [{"session": "ses_" + "1" * 32}, {"stage": "sums"}, {"sender": "feature"}, {"recipient": "owner"}, {"sequence": 4}],
    ids=lambda change: next(iter(change)),
)
def test_a_message_does_not_open_in_another_place(change: dict[str, str]) -> None:
    assert_closed(seal(body(100)), HEADER.model_copy(update=change))


def test_a_message_does_not_open_under_the_key_of_another_pair() -> None:
    assert_closed(seal(body(100)), pair=bytes(32))


@pytest.mark.parametrize("size", [0, stream.CHUNK, 2 * stream.CHUNK])
def test_the_last_chunk_is_marked_as_such(size: int) -> None:
    state, salt = stream.begin(PAIR, HEADER)
    state, chunks = stream.feed(state, body(size) + b"x")
    # All but the last chunk were sealed as chunks that others follow: they are no message.
    assert_closed(salt + chunks)
    assert unseal(salt + chunks + stream.finish(state)) == body(size) + b"x"


def test_a_message_of_too_many_chunks_is_refused() -> None:
    state, _ = stream.begin(PAIR, HEADER)
    full = replace(state, index=stream.MOST_CHUNKS)
    with pytest.raises(ArgumentValueError) as caught:
        stream.finish(full)
    assert caught.value.reason == "session_size"
