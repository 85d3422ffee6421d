"""Sealing a message of any length in chunks, with the memory of one chunk.

The STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption and its
Nonce-Reuse Misuse-Resistance" (CRYPTO 2015), over AES-256-GCM: the nonce of a chunk is a prefix of 7 bytes, the chunk's
number as 4 big-endian bytes, and one byte that is 1 for the last chunk. Chunks that are left out, repeated, exchanged
or cut off do not open. Key and prefix come from the pair's key and a fresh random salt, so no two sealings share a
key, whatever is sealed again under the same header.

Sealed bytes: ``salt (32) ‖ chunk ‖ … ‖ last chunk``. Each chunk but the last holds 65536 bytes of the message, the last
0 to 65536; each is 16 bytes longer than what it holds. The header's canonical JSON is the associated data of each.
"""

from dataclasses import dataclass, field, replace
from os import urandom
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coterie import errors
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.secagg.keys import derive
from coterie.privacy.session.agreement import DOMAIN
from coterie.protocol.session import MessageHeader

CHUNK: Final = 1 << 16
TAG: Final = 16
SALT: Final = 32
MOST_CHUNKS: Final = 1 << 32
_PREFIX: Final = 7


@dataclass(frozen=True)
class Stream:
    """Where a sealing or an opening is.

    index: of the next chunk.
    rest: bytes that are not a whole chunk yet. A state may be stepped once only: a sealer that is stepped twice would
        use a nonce twice.
    """

    header: bytes
    key: bytes = field(default=b"", repr=False)
    prefix: bytes = field(default=b"", repr=False)
    index: int = 0
    rest: bytes = field(default=b"", repr=False)


def begin(pair: bytes, header: MessageHeader, entropy: Entropy = urandom) -> tuple[Stream, bytes]:
    """A sealer under the pair's key, and the first sealed bytes: the salt."""
    salt = draw(entropy, SALT)
    return _with_key(Stream(header.to_bytes()), pair, salt), salt


def feed(state: Stream, data: bytes) -> tuple[Stream, bytes]:
    """Seal more of the message. Returns the sealed chunks that are whole; the last one is kept back."""
    held = state.rest + data
    out: list[bytes] = []
    cipher = AESGCM(state.key)
    place, index = 0, state.index
    while len(held) - place > CHUNK:
        chunk = held[place : place + CHUNK]
        out.append(cipher.encrypt(_nonce(state.prefix, index, last=False), chunk, state.header))
        place, index = place + CHUNK, index + 1
    return replace(state, index=index, rest=held[place:]), b"".join(out)


def finish(state: Stream) -> bytes:
    """The last sealed chunk. The state is of no more use."""
    return AESGCM(state.key).encrypt(_nonce(state.prefix, state.index, last=True), state.rest, state.header)


def expect(header: MessageHeader) -> Stream:
    """An opener of the message that has exactly this header."""
    return Stream(header.to_bytes())


def take(state: Stream, pair: bytes, data: bytes) -> tuple[Stream, bytes]:
    """Open more of the sealed bytes. Returns the plaintext of the chunks that are surely not the last.

    Raises errors.InputError (``session_seal``) for a chunk that does not open.
    """
    held = state.rest + data
    if not state.key:
        if len(held) < SALT:
            return replace(state, rest=held), b""
        state, held = _with_key(state, pair, held[:SALT]), held[SALT:]
    out: list[bytes] = []
    cipher = AESGCM(state.key)
    place, index = 0, state.index
    while len(held) - place > CHUNK + TAG:
        out.append(_decrypt(cipher, state, index, held[place : place + CHUNK + TAG], last=False))
        place, index = place + CHUNK + TAG, index + 1
    return replace(state, index=index, rest=held[place:]), b"".join(out)


def close(state: Stream) -> bytes:
    """The plaintext of the last chunk: only when this returns has the message come whole.

    Raises errors.InputError (``session_seal``) where the message was cut off or changed.
    """
    if not state.key:
        raise _seal_broken(state)
    return _decrypt(AESGCM(state.key), state, state.index, state.rest, last=True)


def _with_key(state: Stream, pair: bytes, salt: bytes) -> Stream:
    material = derive(pair, DOMAIN + b"message\n" + salt + state.header, 32 + _PREFIX)
    return replace(state, key=material[:32], prefix=material[32:], rest=b"")


def _nonce(prefix: bytes, index: int, *, last: bool) -> bytes:
    if index >= MOST_CHUNKS:
        raise errors.ArgumentValueError(f"A message has at most {MOST_CHUNKS} chunks.", code="session_size")
    return prefix + index.to_bytes(4, "big") + bytes([last])


def _decrypt(cipher: AESGCM, state: Stream, index: int, chunk: bytes, *, last: bool) -> bytes:
    try:
        return cipher.decrypt(_nonce(state.prefix, index, last=last), chunk, state.header)
    except (InvalidTag, ValueError):
        raise _seal_broken(state) from None


def _seal_broken(state: Stream) -> errors.InputError:
    return errors.InputError(
        f"Chunk {state.index} of the message {state.header.decode()} cannot be decrypted: it was changed, truncated "
        "or moved on its way, or sealed for somebody else.",
        hint="End the session and make another; the coordinator or the partner is not honest, or a store was restored.",
        code="session_seal",
    )
