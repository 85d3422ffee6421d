"""What the coordinator holds before the shares come looks like noise: masked vectors, differences, partial sums.

The vectors themselves are all zeros, so that whatever is seen is the masks. The entropy is fixed, and so are the tests;
the bounds are those that uniform bits leave with a chance below 1e-5.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from attempt_kit import MODES, Attempt, start, terms

from coterie.privacy.secagg import client, server
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import pack, reduced, unpack
from coterie.protocol.secagg import SecureMode
from coterie.protocol.secure_sections import SecureSection

SECTIONS = (SecureSection(name="delta", encoding="grid", values=20_000, bits=20, top=1023, norm=10.0),)
SPEC = vector_spec(SECTIONS)
CLIENTS = 6


@cache
def masked(mode: SecureMode) -> npt.NDArray[np.uint32]:
    """The masked vectors of clients that have nothing to say: [clients, values]."""
    attempt: Attempt = start(CLIENTS, terms(mode, dropout=0.3, sections=SECTIONS))
    attempt.form()
    attempt.deal()
    zeros = np.zeros(SPEC.length, np.uint32)
    rows: list[npt.NDArray[np.uint32]] = []
    for party in attempt.parties:
        party.step(server.shares_for(attempt.coordinator, party.place, attempt.bundles))
        rows.append(unpack(client.mask(party.state, zeros)[1], SPEC))
    return np.stack(rows)


def check_uniform(words: npt.NDArray[np.uint32]) -> None:
    """Every bit is one half the time, and every byte of the packed vector is as frequent as any other."""
    for bit in range(20):
        ones = int((words >> np.uint32(bit) & np.uint32(1)).sum())
        assert abs(ones - words.size / 2) < 4.5 * np.sqrt(words.size) / 2, bit
    bytes_ = np.frombuffer(pack(words, SPEC), np.uint8)
    counts = np.bincount(bytes_, minlength=256)
    expected = bytes_.size / 256
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 164 < chi_square < 366  # 255 degrees of freedom


@pytest.mark.parametrize("mode", MODES)
def test_single_masked_vectors_are_uniform(mode: SecureMode) -> None:
    for words in masked(mode):
        check_uniform(words)


@pytest.mark.parametrize("mode", MODES)
def test_differences_and_partial_sums_are_uniform(mode: SecureMode) -> None:
    rows = masked(mode)
    for one in range(CLIENTS):
        check_uniform(reduced(rows[one] - rows[(one + 1) % CLIENTS], SPEC))
        check_uniform(reduced(np.delete(rows, one, axis=0).sum(axis=0, dtype=np.uint32), SPEC))
    # The pairs' masks cancel in the sum of all, and the own masks are what still hides it.
    check_uniform(reduced(rows.sum(axis=0, dtype=np.uint32), SPEC))


def test_two_masked_vectors_have_nothing_in_common() -> None:
    rows = masked("semi_honest").astype(np.float64)
    correlation = np.corrcoef(rows)
    assert np.abs(correlation - np.eye(CLIENTS)).max() < 4.5 / np.sqrt(SPEC.length)


def test_the_check_sees_what_is_not_uniform() -> None:
    small = np.random.default_rng(0).integers(0, 1 << 19, SPEC.length, np.uint32)
    with pytest.raises(AssertionError):
        check_uniform(small)
    with pytest.raises(AssertionError):
        check_uniform(np.repeat(masked("semi_honest")[0][:5000], 4))
