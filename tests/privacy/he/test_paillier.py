"""Paillier's laws, for both arithmetics, and the same key under another library."""

import sys
from collections.abc import Iterator
from math import gcd
from os import urandom
from typing import Any

import phe.paillier  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.he.arithmetic import PURE, Arithmetic, fast
from coterie.privacy.he.keys import SIZES, PaillierPublicKey, check_public_key, key_of_primes, make_key
from coterie.privacy.he.paillier import Decryption, Paillier, with_private, with_public
from coterie.privacy.he.primes import draw_prime, is_prime
from tests.privacy.he.keys_kit import small_key

ARITHMETICS = {"pure": PURE, "gmpy2": fast()}
LIMIT = small_key().public.limit
NUMBERS = st.integers(-LIMIT // 4, LIMIT // 4)
phe_library: Any = phe.paillier


@pytest.fixture(scope="module", params=ARITHMETICS)
def arithmetic(request: pytest.FixtureRequest) -> Arithmetic:
    return ARITHMETICS[request.param]


@pytest.fixture(scope="module", params=["public", "private"])
def paillier(request: pytest.FixtureRequest, arithmetic: Arithmetic) -> Paillier:
    key = small_key()
    return with_public(key.public, arithmetic) if request.param == "public" else with_private(key, arithmetic)


@pytest.fixture(scope="module")
def decryption(arithmetic: Arithmetic) -> Decryption:
    return Decryption(small_key(), arithmetic)


@settings(max_examples=30, deadline=None)
@given(NUMBERS, NUMBERS)
def test_sums_of_ciphertexts_hold_sums(paillier: Paillier, decryption: Decryption, first: int, second: int) -> None:
    a, b = paillier.encrypt(first, urandom), paillier.encrypt(second, urandom)
    assert decryption.decrypt(paillier.add(a, b)) == first + second
    assert decryption.decrypt(paillier.add(paillier.zero(), a)) == first


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**100), 2**100), st.integers(-(2**80), 2**80))
def test_a_multiple_holds_the_product(paillier: Paillier, decryption: Decryption, number: int, factor: int) -> None:
    cipher = paillier.encrypt(number, urandom)
    assert decryption.decrypt(paillier.scale(cipher, factor)) == number * factor


@pytest.mark.parametrize("number", [0, 1, -1, LIMIT, -LIMIT])
def test_blinding_keeps_the_number_and_changes_the_ciphertext(
    paillier: Paillier, decryption: Decryption, number: int
) -> None:
    cipher = paillier.encrypt(number, urandom)
    blinded = paillier.blind(cipher, urandom)
    assert blinded != cipher != paillier.encrypt(number, urandom)
    assert decryption.decrypt(cipher) == decryption.decrypt(blinded) == number


def test_a_sum_that_was_not_blinded_tells_what_went_into_it() -> None:
    """Why every result is blinded: the owner of the ciphertexts multiplies those of a guess, and compares."""
    paillier = with_public(small_key().public)
    rows = [paillier.encrypt(1, urandom) for _ in range(8)]
    total = paillier.add(rows[2], rows[5])
    guesses = {(i, j): paillier.add(rows[i], rows[j]) for i in range(8) for j in range(i)}
    assert [pair for pair, guess in guesses.items() if guess == total] == [(5, 2)]
    assert paillier.blind(total, urandom) not in guesses.values()


def test_who_has_the_public_key_blinds_with_an_exponent_beyond_every_order() -> None:
    key, drawn = small_key(), list[int]()

    def noting(count: int) -> bytes:
        drawn.append(count)
        return urandom(count)

    everybody, owner = with_public(key.public), with_private(key)
    cipher = everybody.encrypt(1, noting)
    everybody.blind(cipher, noting)
    owner.blind(cipher, noting)
    assert drawn == [key.public.bits // 16, key.public.bits // 8 + 8, key.public.bits // 16]


def test_the_owner_and_everybody_make_the_same_ciphertext_of_the_same_entropy(arithmetic: Arithmetic) -> None:
    key = small_key()
    everybody, owner = with_public(key.public, arithmetic), with_private(key, arithmetic)
    for byte in (b"\x00", b"\x01", b"\xa7", b"\xff"):
        assert everybody.encrypt(-12, lambda count, byte=byte: byte * count) == owner.encrypt(
            -12, lambda count, byte=byte: byte * count
        )


@pytest.mark.parametrize("number", [LIMIT + 1, -LIMIT - 1])
def test_a_number_that_the_key_cannot_hold_is_refused(paillier: Paillier, number: int) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        paillier.encrypt(number, urandom)
    assert caught.value.reason == "plaintext_range" and str(number) not in str(caught.value)


@settings(max_examples=20, deadline=None)
@given(NUMBERS)
def test_phe_reads_what_we_encrypt_and_we_what_phe_does(number: int) -> None:
    key = small_key()
    n = key.public.modulus
    theirs = phe_library.PaillierPublicKey(n)
    their_private = phe_library.PaillierPrivateKey(theirs, key.p, key.q)
    ours = with_public(key.public)
    assert their_private.raw_decrypt(int(ours.encrypt(number, urandom))) == number % n
    assert Decryption(key).decrypt(theirs.raw_encrypt(number % n)) == number
    mixed = ours.add(ours.encrypt(number, urandom), theirs.raw_encrypt(7))
    assert Decryption(key).decrypt(mixed) == number + 7


@pytest.mark.parametrize("bits", [2048])
def test_a_key_is_made_as_asked(bits: int) -> None:
    key = make_key(bits)
    assert key.public.bits == bits and key.p * key.q == key.public.modulus
    assert key.p % 4 == key.q % 4 == 3 and gcd(key.p - 1, key.q - 1) == 2
    check_public_key(key.public, "registry", bits)
    cipher = with_public(key.public).encrypt(-(2**900), urandom)
    assert Decryption(key).decrypt(cipher) == -(2**900)
    assert str(key.p) not in repr(key) and str(key.q) not in repr(key)


def test_a_key_is_large_unless_a_smaller_one_is_asked_for() -> None:
    assert make_key().public.bits == 3072
    with pytest.raises(errors.ArgumentValueError) as caught:
        make_key(1024)
    assert caught.value.reason == "key_bits" and 1024 not in SIZES


@pytest.mark.parametrize(("p", "q"), [(13, 11), (11, 11), (7, 19), (11, 17)])
def test_primes_of_another_kind_are_refused(p: int, q: int) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        key_of_primes(p, q)
    assert caught.value.reason == "key_bits"


def bad_keys() -> Iterator[PaillierPublicKey]:
    good = small_key().public
    yield PaillierPublicKey(good.modulus - 2, good.base)
    yield PaillierPublicKey(good.modulus >> 8 | 1, good.base)
    yield PaillierPublicKey(good.modulus, 0)
    yield PaillierPublicKey(good.modulus, 1)
    yield PaillierPublicKey(good.modulus, good.square)
    yield PaillierPublicKey(good.modulus, small_key().p)


@pytest.mark.parametrize("key", [*bad_keys()])
def test_a_public_key_that_cannot_be_one_is_refused(key: PaillierPublicKey) -> None:
    with pytest.raises(errors.InputError, match="registry sent a public key") as caught:
        check_public_key(key, "registry", 512)
    assert caught.value.reason == "public_key" and str(key.modulus) not in str(caught.value)


@pytest.mark.parametrize("number", [561, 41041, 825265, 2**61 - 3, (2**31 - 1) * (2**61 - 1), 3 * 2**90 + 3])
def test_a_composite_is_no_prime(arithmetic: Arithmetic, number: int) -> None:
    assert not is_prime(number, urandom, arithmetic)


@pytest.mark.parametrize("number", [3, 5, 2039, 2053, 2**61 - 1, 2**127 - 1, 2**521 - 1])
def test_a_prime_is_one(arithmetic: Arithmetic, number: int) -> None:
    assert is_prime(number, urandom, arithmetic)


def test_every_small_odd_number_is_judged_rightly(arithmetic: Arithmetic) -> None:
    for number in range(3, 5001, 2):
        prime = all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))
        assert is_prime(number, urandom, arithmetic) == prime, number


def test_a_drawn_prime_has_its_bits(arithmetic: Arithmetic) -> None:
    for _ in range(4):
        prime = draw_prime(64, urandom, arithmetic)
        assert prime.bit_length() == 64 and prime >> 62 == 3 and prime % 4 == 3


def test_a_machine_without_gmpy2_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    fast.cache_clear()
    try:
        with pytest.raises(errors.ConfigurationError, match=r"coterie\[vertical\]") as caught:
            make_key()
    finally:
        fast.cache_clear()
    assert caught.value.reason == "extra_missing"
