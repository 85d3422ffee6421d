"""What may happen to messages and states on their way: bits that flip, repeats, restarts, and nothing secret shown."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
from attempt_kit import (
    MODEL,
    MODES,
    PLAN,
    Attempt,
    device,
    entropy_of,
    identity,
    run,
    sent,
    start,
    stored_client,
    stored_server,
    terms,
)
from pydantic import BaseModel

from coterie.errors import CoterieError, StorageError
from coterie.privacy.secagg import client, server
from coterie.privacy.secagg.client_state import ClientState
from coterie.privacy.secagg.server_state import ServerState
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.secagg import SecureMode
from coterie.protocol.wire import read_message

KINDS = ("Roster", "Shares", "SharesFor", "Survivors", "Agreement", "Agreements", "Reveal")
FLIPS = 12


def flipped(message: Any, bit: int) -> Any:
    """The message as it is read when one bit of it, counted round its end, was another on the way."""
    kind = cast(type[BaseModel], type(message))
    data = bytearray(canonical_json(message.model_dump(mode="json")))
    at = bit % (8 * len(data))
    data[at >> 3] ^= 1 << (at & 7)
    return read_message(kind, bytes(data), limit=1 << 26)


@pytest.mark.parametrize(
    "mode,kind", [(mode, kind) for mode in MODES for kind in KINDS if "Agree" not in kind or mode == "consistent"]
)
def test_a_bit_flipped_anywhere_never_makes_a_wrong_sum(mode: SecureMode, kind: str) -> None:
    seen: set[str] = set()
    for bit in np.random.default_rng(len(kind)).integers(0, 1 << 30, FLIPS).tolist():
        attempt = start(7, terms(mode, dropout=0.3, min_clients=4))
        attempt.form()
        touched = [False]

        def wire(place: int, message: Any, bit: int = bit, touched: list[bool] = touched) -> Any:
            if place != 2 or type(message).__name__ != kind or touched[0]:
                return sent(message)
            touched[0] = True
            return flipped(message, bit)

        for party in attempt.parties:
            party.wire = wire
        run(attempt, {"masked": {6}})
        assert touched[0]
        assert attempt.coordinator.phase.final
        if attempt.coordinator.phase is server.SecAggPhase.SUMMED:
            np.testing.assert_array_equal(attempt.total(), attempt.expected())
        seen |= {party.refusal.reason for party in attempt.parties if party.refusal is not None}
        seen |= {error.reason for error in attempt.refused.values()}
        seen |= {attempt.coordinator.cause.value} if attempt.coordinator.cause else set()
        seen |= {"blamed"} if attempt.coordinator.blamed else set()
    assert seen


def test_a_bit_flipped_in_advertised_keys_is_refused_or_counts_for_nothing() -> None:
    _, keys = client.begin(terms(), device=device(0), plan=PLAN, model=MODEL, identity=identity(0))
    state = server.open_attempt(terms(), plan=PLAN, model=MODEL)
    refused = 0
    for bit in range(0, 8 * len(canonical_json(keys.model_dump(mode="json"))), 5):
        try:
            state_after = server.step(state, server.Advertised(device(0), identity(0).public, flipped(keys, bit)))
        except CoterieError:
            refused += 1
        else:  # the last characters of a signature's base64 have bits that no byte has
            assert state_after.entries[0].mask_key == keys.mask_key
            assert state_after.entries[0].channel_key == keys.channel_key
    assert refused > 300


@pytest.mark.parametrize("mode", MODES)
def test_every_message_may_come_twice_at_both_sides(mode: SecureMode) -> None:
    attempt = start(7, terms(mode, dropout=0.3))
    attempt.form()
    phases = (attempt.deal, attempt.mask, attempt.agree, attempt.reveal)
    questions: dict[Callable[[], None], Callable[[int], Any]] = {
        attempt.deal: lambda place: server.roster_for(attempt.coordinator, place),
        attempt.mask: lambda place: server.shares_for(attempt.coordinator, place, attempt.bundles),
        attempt.agree: lambda _: server.survivors_for(attempt.coordinator),
        attempt.reveal: lambda place: (
            server.survivors_for(attempt.coordinator)
            if mode == "semi_honest"
            else server.agreements_for(attempt.coordinator, place, attempt.agreements)
        ),
    }
    answers: dict[Callable[[], None], Mapping[int, Any]] = {
        attempt.deal: attempt.bundles,
        attempt.agree: attempt.agreements,
        attempt.reveal: attempt.reveals,
    }
    for phase in phases:
        if phase == attempt.agree and mode == "semi_honest":
            continue
        asked = {party.place: questions[phase](party.place) for party in attempt.parties}
        phase()
        for party in attempt.parties:
            state = party.state
            again = party.step(asked[party.place])
            assert party.refusal is None
            assert party.state is state
            assert again == answers[phase][party.place] if phase in answers else again is None
    np.testing.assert_array_equal(attempt.total(), attempt.expected())


def collected() -> list[tuple[Attempt, ClientState]]:
    """States of all phases that hold secrets, with their attempts."""
    found: list[tuple[Attempt, ClientState]] = []
    attempt = start(7, terms("consistent", dropout=0.3))
    found.append((attempt, attempt.parties[0].state))
    attempt.form()
    for phase in (attempt.deal, attempt.mask, attempt.agree, attempt.reveal):
        phase()
        found.append((attempt, attempt.parties[0].state))
    return found


def test_no_secret_is_shown_by_repr_str_or_logs(caplog: pytest.LogCaptureFixture) -> None:
    for attempt, state in collected():
        secret: set[str] = set()
        if state.secrets is not None:
            for raw in (state.secrets.mask_key, state.secrets.channel_key, state.secrets.seed):
                secret |= {raw.hex(), repr(raw)[2:-1]}
        for key in state.channels.values():
            secret |= {key.hex(), repr(key)[2:-1]}
        for held in state.shares.values():
            secret |= {held.seed, held.mask_key}
        for answer in attempt.reveals.values():
            secret |= {*answer.self_shares.values(), *answer.mask_shares.values()}
        shown = [state, state.secrets, [*state.shares.values()], [*state.answered.values()], attempt.coordinator]
        shown += [attempt.coordinator.opened, [*attempt.reveals.values()]]
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("coterie").debug("%r %s", shown, state)
        text = f"{shown!r} {state} {attempt.coordinator} {caplog.text}"
        assert not [value for value in secret if value in text]


def test_the_state_holds_no_secret_once_all_is_said() -> None:
    for state in (collected()[-1][1], collected()[1][1].without_secrets()):
        text = json.dumps(to_json(state))
        assert state.secrets is None
        assert not state.shares
        assert not state.channels
        assert '"secrets": null' in text


@pytest.mark.parametrize(
    "broken", [{}, {"format": 2}, {"format": 1, "phase": "nonsense"}, {"format": 1, "phase": 3}], ids=str
)
def test_a_stored_state_that_cannot_be_read_is_refused_without_its_content(broken: dict[str, Any]) -> None:
    for kind in (ClientState, ServerState):
        with pytest.raises(StorageError) as caught:
            kind.from_json(broken)
        assert caught.value.reason == "secagg_state"
        assert caught.value.__cause__ is None


def test_states_are_the_same_after_a_restart() -> None:
    for attempt, state in collected():
        assert stored_client(state) == state
        assert stored_server(attempt.coordinator) == attempt.coordinator


def test_the_outcome_ends_a_client_and_an_open_one_does_not() -> None:
    attempt = start(7, terms(dropout=0.3))
    attempt.form()
    attempt.deal()
    party = attempt.parties[0]
    before = party.state
    party.step(server.outcome_for(attempt.coordinator))
    assert party.state == before
    attempt.mask()
    attempt.reveal()
    party.step(server.outcome_for(attempt.coordinator))
    assert party.state.awaits == "nothing"
    assert party.state.secrets is None


def test_another_identity_key_cannot_go_on() -> None:
    attempt = start(7, terms(dropout=0.3))
    attempt.form()
    party = attempt.parties[0]
    with pytest.raises(CoterieError) as caught:
        client.step(
            party.state,
            server.roster_for(attempt.coordinator, party.place),
            identity=identity(99),
            entropy=entropy_of("x"),
        )
    assert caught.value.reason == "key_invalid"
