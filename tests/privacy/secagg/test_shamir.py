"""Any threshold of shares opens a secret, fewer say nothing, and wrong ones never pass for right ones in silence."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.secagg import shamir
from coterie.privacy.secagg.shamir import PRIME

SECRETS = st.binary(min_size=32, max_size=32)


@given(SECRETS, st.integers(1, 12), st.data())
@settings(max_examples=80)
def test_any_threshold_of_shares_opens_it(secret: bytes, threshold: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(threshold, 20))
    shares = shamir.share(secret, threshold, count)
    assert shares.shape == (count, 9) and shares.dtype == np.uint32
    points = data.draw(st.permutations(range(1, count + 1)))[: data.draw(st.integers(threshold, count))]
    chosen = shares[[point - 1 for point in points]]
    assert shamir.rebuild(points, chosen, threshold) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\x80", b"\x01" + bytes(31)])
@pytest.mark.parametrize(("threshold", "count"), [(27, 48), (67, 96), (1, 1), (2, 2), (300, 300)])
def test_secrets_at_the_edges(secret: bytes, threshold: int, count: int) -> None:
    shares = shamir.share(secret, threshold, count)
    points = list(range(count - threshold + 1, count + 1))
    assert shamir.rebuild(points, shares[-threshold:], threshold) == secret


def test_shares_are_the_polynomials_by_python_integers() -> None:
    """An oracle of a few lines: the same coefficients, whole numbers without bound, one point at a time."""
    drawn = os.urandom(1 << 16)
    secret, threshold, count = os.urandom(32), 5, 9
    words = [int.from_bytes(drawn[at : at + 4], "little") for at in range(0, len(drawn), 4)]
    kept = iter([word for word in words if word < PRIME])
    coefficients = [[next(kept) for _ in range(9)] for _ in range(threshold - 1)]  # the highest power first
    number = int.from_bytes(secret, "little")
    limbs = [number >> 31 * limb & 2**31 - 1 for limb in range(9)]
    at = [0]

    def entropy(size: int) -> bytes:
        at[0] += size
        return drawn[at[0] - size : at[0]]

    shares = shamir.share(secret, threshold, count, entropy)
    for x in range(1, count + 1):
        for limb in range(9):
            powers = [coefficients[i][limb] * x ** (threshold - 1 - i) for i in range(threshold - 1)]
            assert shares[x - 1, limb] == (sum(powers) + limbs[limb]) % PRIME


def test_coefficients_are_uniform_over_the_field_and_not_below_a_power_of_two() -> None:
    def words_of(values: list[int]) -> bytes:
        return b"".join(value.to_bytes(4, "little") for value in values)

    edge = words_of([PRIME - 1, PRIME, PRIME + 1, 2**32 - 1, 2**31, 0])

    def entropy(size: int) -> bytes:
        return (edge * size)[:size]

    assert shamir.random_elements(6, entropy).tolist() == [PRIME - 1, 2**31, 0] * 2
    drawn = shamir.random_elements(200_000)
    assert int(drawn.max()) < PRIME
    counts = np.bincount((drawn * np.uint64(64) // np.uint64(PRIME)).astype(np.int64), minlength=64)
    assert ((counts - 3125) ** 2 / 3125).sum() < 132  # chi-square with 63 degrees of freedom: passed by 1 - 1e-6


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    """threshold - 1 shares and any guess at the secret lie on one polynomial, so they exclude no secret."""
    secret, guess = os.urandom(32), os.urandom(32)
    shares = shamir.share(secret, 4, 7)
    seen = [2, 5, 6]
    # A share 7 made up so that the guess comes out: there is exactly one.
    for limb in range(9):
        wanted = int.from_bytes(guess, "little") >> 31 * limb & 2**31 - 1
        points = [*seen, 7]
        weights: list[int] = []
        for i in points:
            product = 1
            for j in points:
                if j != i:
                    product = product * j * pow(j - i, -1, PRIME) % PRIME
            weights.append(product)
        known = sum(w * int(shares[p - 1, limb]) for w, p in zip(weights[:3], seen, strict=True))
        shares[6, limb] = (wanted - known) * pow(weights[3], -1, PRIME) % PRIME
    assert shamir.rebuild([2, 5, 6, 7], shares[[1, 4, 5, 6]], 4) == guess


def test_few_shares_look_uniform_whatever_the_secret() -> None:
    """The first share of 4000 sharings of one secret: each limb's top bits are spread evenly."""
    values = np.array([shamir.share(bytes(32), 2, 2)[0] for _ in range(4000)], np.uint64)
    for limb in range(9):
        counts = np.bincount((values[:, limb] * np.uint64(16) // np.uint64(PRIME)).astype(np.int64), minlength=16)
        assert ((counts - 250) ** 2 / 250).sum() < 57  # 15 degrees of freedom: passed by 1 - 1e-6


@given(SECRETS, st.integers(0, 8), st.integers(1, PRIME - 1), st.integers(0, 2))
@settings(max_examples=60)
def test_a_wrong_share_never_gives_the_secret(secret: bytes, limb: int, error: int, victim: int) -> None:
    shares = shamir.share(secret, 3, 5)
    shares[victim, limb] = (int(shares[victim, limb]) + error) % PRIME
    try:
        found = shamir.rebuild([1, 2, 3], shares[:3], 3)
    except errors.ArgumentValueError:
        return
    assert found != secret


def test_many_secrets_at_once_are_those_one_by_one() -> None:
    secrets = [os.urandom(32) for _ in range(30)]
    tables = [shamir.share(secret, 6, 11) for secret in secrets]
    picks = [sorted(os.urandom(11)[i] * 16 + i for i in range(11)) for _ in secrets]
    points = [[pick % 16 + 1 for pick in row][:6] for row in picks]
    stacked = np.array([table[[p - 1 for p in row]] for table, row in zip(tables, points, strict=True)])
    assert shamir.rebuild_many(np.array(points, np.uint64), stacked) == secrets
    stacked[3, 2, 8] = (int(stacked[3, 2, 8]) + 1) % PRIME
    found = shamir.rebuild_many(np.array(points, np.uint64), stacked)
    assert found[3] != secrets[3] and found[:3] == secrets[:3] and found[4:] == secrets[4:]


@pytest.mark.parametrize(("size", "threshold", "count"), [(31, 2, 3), (33, 2, 3), (32, 0, 3), (32, 4, 3)])
def test_impossible_sharings_are_refused(size: int, threshold: int, count: int) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        shamir.share(bytes(size), threshold, count)
    assert caught.value.reason == "secagg_shares"


def test_more_points_than_shares_are_refused() -> None:
    shares = shamir.share(bytes(32), 2, 3)
    for points in ([1, 2, 3], [1], [0, 2], [2, 2], [1, PRIME + 1]):
        with pytest.raises(errors.ArgumentValueError) as caught:
            shamir.rebuild(points, shares[:2], 2)
        assert caught.value.reason == "secagg_shares"


def test_a_source_that_runs_dry_is_an_error() -> None:
    with pytest.raises(errors.InternalError):
        shamir.share(bytes(32), 2, 3, lambda count: b"\1" * (count - 1))
