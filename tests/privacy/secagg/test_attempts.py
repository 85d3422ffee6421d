"""The sum is that of the survivors, bit for bit, whoever drops out in which phase; or there is none, with a cause."""

import numpy as np
import pytest
from attempt_kit import MODES, Attempt, run, start, terms
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.privacy.secagg import server
from coterie.privacy.secagg.server import AttemptFailure, SecAggPhase
from coterie.protocol.secagg import SecureMode

PHASES = ("shares", "masked", "agreement", "reveal")


def check_sum(attempt: Attempt) -> Attempt:
    assert attempt.coordinator.phase is SecAggPhase.SUMMED, attempt.coordinator.detail
    assert attempt.refused == {}
    assert attempt.coordinator.cause is None and attempt.coordinator.opened is not None
    assert attempt.coordinator.blamed == ()
    np.testing.assert_array_equal(attempt.total(), attempt.expected())
    return attempt


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clients", [5, 6, 11])
def test_without_drop_out_the_sum_is_that_of_all(mode: SecureMode, clients: int) -> None:
    attempt = check_sum(run(start(clients, terms(mode))))
    assert attempt.coordinator.survivors == tuple(range(clients))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropped", [{3}, {0, 11}], ids=len)
def test_the_sum_is_exact_with_drop_out_in_each_phase(mode: SecureMode, phase: str, dropped: set[int]) -> None:
    attempt = check_sum(run(start(12, terms(mode)), {phase: dropped}))
    assert set(attempt.coordinator.survivors) == set(range(12)) - (dropped if phase in ("shares", "masked") else set())
    assert [party.refusal for party in attempt.parties] == [None] * 12


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
def test_the_sum_is_exact_on_a_ring(mode: SecureMode, phase: str) -> None:
    attempt = check_sum(run(start(64, terms(mode, corrupt=0.03, dropout=0.1)), {phase: range(0, 60, 10)}))
    assert not attempt.coordinator.parameters.complete


@pytest.mark.parametrize("mode", MODES)
def test_the_sum_is_exact_with_drop_out_in_every_phase_and_restarts_between_any_two_messages(mode: SecureMode) -> None:
    drops = {"shares": {0}, "masked": {5, 6}, "agreement": {12}, "reveal": {13}}
    check_sum(run(start(14, terms(mode, dropout=0.4), restarts=True), drops))


@settings(max_examples=25, derandomize=True)
@given(mode=st.sampled_from(MODES), gone=st.lists(st.sampled_from([None, None, None, *PHASES]), min_size=7, max_size=7))
def test_every_attempt_ends_with_the_exact_sum_or_with_a_cause(mode: SecureMode, gone: list[str | None]) -> None:
    drops = {phase: {place for place, when in enumerate(gone) if when == phase} for phase in PHASES}
    attempt = run(start(7, terms(mode, dropout=0.3)), drops)
    assert attempt.coordinator.phase.final
    assert attempt.refused == {}
    if attempt.coordinator.phase is SecAggPhase.SUMMED:
        check_sum(attempt)
        assert len(attempt.coordinator.survivors) >= 5
    else:
        assert attempt.coordinator.cause is not None
        assert server.outcome_for(attempt.coordinator).cause == attempt.coordinator.cause.value
        assert attempt.coordinator.opened is None


@pytest.mark.parametrize(
    "drops,cause",
    [
        ({"shares": range(8)}, AttemptFailure.TOO_FEW_DEALT),
        ({"masked": range(8)}, AttemptFailure.TOO_FEW_SURVIVORS),
        ({"agreement": range(8)}, AttemptFailure.TOO_FEW_AGREED),
        ({"reveal": range(8)}, AttemptFailure.TOO_FEW_REVEALED),
    ],
    ids=str,
)
def test_too_few_clients_end_an_attempt_with_a_cause(drops: dict[str, range], cause: AttemptFailure) -> None:
    attempt = run(start(12, terms("consistent")), drops)
    assert (attempt.coordinator.phase, attempt.coordinator.cause) == (SecAggPhase.FAILED, cause)
    assert (server.outcome_for(attempt.coordinator).detail or "").startswith(cause.sentence)


def test_an_attempt_of_too_few_clients_or_too_weak_terms_has_no_roster() -> None:
    few = run(start(4))
    assert (few.coordinator.phase, few.coordinator.cause) == (SecAggPhase.FAILED, AttemptFailure.TOO_FEW_CLIENTS)
    weak = run(start(6, terms("consistent", corrupt=0.5)))
    assert (weak.coordinator.phase, weak.coordinator.cause) == (SecAggPhase.FAILED, AttemptFailure.NO_PARAMETERS)
