"""What standards and other implementations print, transcribed into known_answers/ with its source."""

import hmac
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempt_kit import mask_words
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coterie.errors import ArgumentValueError
from coterie.privacy.secagg import channel
from coterie.privacy.secagg.keys import KeyPair, agree, derive, expand, is_canonical
from coterie.privacy.secagg.parameters import parameters

FOLDER = Path(__file__).with_name("known_answers")
KNOWN: dict[str, Any] = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize("name", KNOWN)
def test_every_file_says_where_it_is_from(name: str) -> None:
    assert KNOWN[name]["title"] and KNOWN[name]["provenance"]


def _multiply(scalar: bytes, u: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(scalar).exchange(X25519PublicKey.from_public_bytes(u))


@pytest.mark.parametrize("case", KNOWN["rfc7748"]["multiplications"], ids=("first", "second"))
def test_x25519_multiplies_as_rfc_7748_says(case: Any) -> None:
    secret = _multiply(raw(case["scalar"]), raw(case["u"]))
    assert secret.hex() == case["result"]
    if is_canonical(raw(case["u"])):
        assert agree(raw(case["scalar"]), raw(case["u"]), b"info") == derive(secret, b"info")
        return
    assert raw(case["u"])[31] & 0x80, "RFC 7748 ignores bit 255; a key that has it is another spelling, and refused"
    with pytest.raises(ArgumentValueError) as caught:
        agree(raw(case["scalar"]), raw(case["u"]), b"info")
    assert caught.value.reason == "secagg_key_invalid"


def test_x25519_iterates_as_rfc_7748_says() -> None:
    known = KNOWN["rfc7748"]["iterated"]
    scalar = u = raw(known["start"])
    for count in range(1, 1001):
        scalar, u = _multiply(scalar, u), scalar
        if str(count) in known:
            assert scalar.hex() == known[str(count)]


def test_two_pairs_agree_as_rfc_7748_says() -> None:
    known = KNOWN["rfc7748"]["agreement"]
    pairs = [KeyPair.from_private(raw(private)) for private in known["privates"]]
    assert [pair.public.hex() for pair in pairs] == known["publics"]
    expected = derive(raw(known["secret"]), b"what for")
    assert agree(pairs[0].private, pairs[1].public, b"what for") == expected
    assert agree(pairs[1].private, pairs[0].public, b"what for") == expected


@pytest.mark.parametrize("case", KNOWN["rfc5869"]["cases"], ids=("A.1", "A.2", "A.3"))
def test_hkdf_is_that_of_rfc_5869(case: Any) -> None:
    assert hmac.digest(raw(case["salt"]), raw(case["ikm"]), sha256).hex() == case["prk"]
    assert expand(raw(case["prk"]), raw(case["info"]), case["length"]).hex() == case["okm"]
    if not case["salt"]:  # the case that `derive` is
        assert derive(raw(case["ikm"]), raw(case["info"]), case["length"]).hex() == case["okm"]


def test_counter_mode_is_that_of_sp_800_38a() -> None:
    known = KNOWN["sp800_38a"]
    plaintext, output = raw(known["plaintext"]), raw(known["output"])
    assert bytes(a ^ b for a, b in zip(plaintext, output, strict=True)).hex() == known["ciphertext"]
    stream = Cipher(algorithms.AES(raw(known["key"])), modes.CTR(raw(known["counter"]))).encryptor()
    assert stream.update(bytes(64)) == output


@pytest.mark.parametrize(("start", "stop"), [(0, 64), (5, 6), (1021, 1030), ((1 << 34) - 6, 1 << 34)])
def test_a_mask_is_counter_mode_by_its_definition(start: int, stop: int) -> None:
    """Block by block with nothing but the block cipher, each counter written out."""
    seed = bytes(range(32))
    key = expand(seed, b"coterie/secagg/v1/stream", 44)
    cipher = Cipher(algorithms.AES(key[:32]), modes.ECB()).encryptor()
    blocks = range(start // 4, (stop + 3) // 4)
    stream = b"".join(cipher.update(key[32:] + block.to_bytes(4, "big")) for block in blocks)
    expected = np.frombuffer(stream, "<u4")[start % 4 :][: stop - start]
    assert np.array_equal(mask_words(seed, start, stop), expected)


@pytest.mark.parametrize("case", KNOWN["gcm"]["cases"], ids=("13", "14", "16"))
def test_boxes_are_those_of_gcm(case: Any) -> None:
    key, nonce, data, plaintext = (raw(case[name]) for name in ("key", "nonce", "data", "plaintext"))
    box = channel.seal(key, plaintext, data, lambda count: nonce[:count])
    assert box.hex() == case["nonce"] + case["ciphertext"] + case["tag"]
    assert channel.unseal(key, box, data) == plaintext


TABLE = [
    (corrupt, dropout, mode, int(clients), tuple(found))
    for corrupt, dropout, mode, _, row in KNOWN["parameters"]["rows"]
    for clients, found in row.items()
]


@pytest.mark.parametrize(("corrupt", "dropout", "mode", "clients", "found"), TABLE)
def test_neighbours_and_thresholds_are_those_of_the_table(
    corrupt: float, dropout: float, mode: Any, clients: int, found: tuple[int, int]
) -> None:
    made = parameters(clients, corrupt=corrupt, dropout=dropout, mode=mode)
    assert (made.neighbours, made.threshold) == found
