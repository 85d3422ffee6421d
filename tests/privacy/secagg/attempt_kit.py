"""Whole attempts in memory: clients and coordinator exchange messages as bytes, and states go through JSON if asked.

A test says who drops out in which phase, and changes what it wants to go wrong between the phases.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.privacy.entropy import Entropy
from coterie.privacy.secagg import client, server, unmask
from coterie.privacy.secagg.client_state import ClientState
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masks import MaskSeed, add_masks
from coterie.privacy.secagg.ring import RingVector, reduced, unpack
from coterie.privacy.secagg.server_state import ServerState
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.secagg import AdvertiseKeys, Agreement, Reveal, SecureMode, SecureTerms, Shares
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.signing import SigningKey
from coterie.protocol.wire import AnyMessage, read_message

PLAN, MODEL = "aa" * 32, "bb" * 32
ATTEMPT = "att_" + "01" * 16
MODES: tuple[SecureMode, ...] = ("semi_honest", "consistent")
SECTIONS = (
    SecureSection(name="counts", encoding="exact", values=5, bits=13, top=100),
    SecureSection(name="delta", encoding="grid", values=150, bits=20, top=1023, norm=10.0),
    SecureSection(name="metrics", encoding="fixed", values=3, bits=32, top=1 << 20, low=-64.0, step=0.25),
)
SPEC = vector_spec(SECTIONS)


def mask_words(seed: bytes, start: int, stop: int) -> RingVector:
    """The words [start, stop) of one mask."""
    words = np.zeros(stop - start, np.uint32)
    add_masks(words, [MaskSeed(seed, 1)], start)
    return words


def terms(mode: SecureMode = "semi_honest", **other: Any) -> SecureTerms:
    """The terms of the attempts here, changed as asked."""
    usual: dict[str, Any] = {
        "attempt": ATTEMPT,
        "mode": mode,
        "corrupt": 0.1,
        "dropout": 0.2,
        "min_clients": 5,
        "max_clients": 1000,
        "weight_cap": 1,
        "sections": SECTIONS,
        "noise": None,
        "phase_ms": 60_000,
    }
    return SecureTerms(**{**usual, **other})


@cache
def identity(index: int) -> SigningKey:
    """The identity key of the device number `index`."""
    return SigningKey.from_seed(hashlib.sha256(f"device {index}".encode()).digest())


def device(index: int) -> str:
    """The id of the device number `index`."""
    return f"dev_{index:032x}"


def vector(index: int) -> RingVector:
    """What the device number `index` brings to the sum: any numbers of the rings, small and large."""
    words = np.random.default_rng(index).integers(0, 1 << 32, SPEC.length, np.uint32)
    return reduced(words, SPEC)


def entropy_of(name: str) -> Entropy:
    """The same bytes in every run for a name, other ones at every call."""
    calls = iter(range(1 << 30))
    return lambda count: hashlib.shake_256(f"{name} {next(calls)}".encode()).digest(count)


def sent(message: AnyMessage) -> AnyMessage:
    """The message as the other side reads it: through its bytes."""
    return read_message(type(message), canonical_json(message.model_dump(mode="json")), limit=1 << 26)


def stored_client(state: ClientState) -> ClientState:
    """The state after a restart."""
    return ClientState.from_json(json.loads(json.dumps(to_json(state))))


def stored_server(state: ServerState) -> ServerState:
    """The state after a restart."""
    return ServerState.from_json(json.loads(json.dumps(to_json(state))))


@dataclass
class Party:
    """One device: its state, and why it gave up, if it did."""

    index: int
    state: ClientState
    entropy: Entropy
    place: int = -1
    refusal: CoterieError | None = None
    restarts: bool = False
    wire: Callable[[int, Any], Any] = lambda place, message: sent(message)

    def step(self, message: Any) -> Any:
        """Answer a message; None also where the device refuses it, and then says nothing more."""
        if self.refusal is not None:
            return None
        if self.restarts:
            self.state = stored_client(self.state)
        try:
            heard = self.wire(self.place, message)
            state, answer = client.step(self.state, heard, identity=identity(self.index), entropy=self.entropy)
        except CoterieError as error:
            self.refusal = error
            self.state = self.state.without_secrets()
            return None
        self.state = state
        try:
            return None if answer is None else self.wire(self.place, answer)
        except CoterieError as error:  # the coordinator cannot read it
            self.refusal = error
            return None


@dataclass
class Attempt:
    """One attempt, phase by phase. gone: the places that are silent from now on. restarts: all states go through JSON
    between any two messages.
    """

    terms: SecureTerms
    parties: list[Party]
    keys: list[AdvertiseKeys]
    coordinator: ServerState
    restarts: bool = False
    gone: set[int] = field(default_factory=set[int])
    bundles: dict[int, Shares] = field(default_factory=dict[int, Shares])
    masked: dict[int, bytes] = field(default_factory=dict[int, bytes])
    agreements: dict[int, Agreement] = field(default_factory=dict[int, Agreement])
    reveals: dict[int, Reveal] = field(default_factory=dict[int, Reveal])
    refused: dict[int, CoterieError] = field(default_factory=dict[int, CoterieError])

    def feed(self, event: server.ServerEvent, place: int | None = None) -> None:
        """Tell the coordinator; a refused message of a place is kept."""
        if self.restarts:
            self.coordinator = stored_server(self.coordinator)
        before = self.coordinator.phase
        try:
            self.coordinator = server.step(self.coordinator, event)
        except CoterieError as error:
            if place is None:
                raise
            self.refused[place] = error
            return
        assert self.coordinator.phase in (before, *server.TABLE[before][type(event)].leads_to)

    def close(self, phase: server.SecAggPhase) -> None:
        """The phase's deadline, if it is still on."""
        if self.coordinator.phase is phase:
            self.feed(server.PhaseDeadline())

    def active(self) -> list[Party]:
        return [party for party in self.parties if party.place not in self.gone]

    def at(self, place: int) -> Party:
        return next(party for party in self.parties if party.place == place)

    def form(self) -> None:
        """End the phase of keys; every device has a place then."""
        self.close(server.SecAggPhase.KEYS)
        if self.coordinator.phase is server.SecAggPhase.SHARES:
            places = {entry.device: entry.position for entry in self.coordinator.entries}
            for party in self.parties:
                party.place = places[device(party.index)]

    def deal(self, change: Callable[[Party, Shares], Shares] = lambda party, shares: shares) -> None:
        """Rosters go out, shares come back."""
        for party in self.active():
            shares = party.step(server.roster_for(self.coordinator, party.place))
            if shares is not None:
                self.bundles[party.place] = change(party, shares)
                self.feed(server.Shared(party.place, self.bundles[party.place]), party.place)
        self.close(server.SecAggPhase.SHARES)

    def mask(self, words: Callable[[int], RingVector] | None = None) -> None:
        """Boxes go out, masked vectors come back.

        words: what the device of a number brings to the sum; None for `vector`.
        """
        brought = vector if words is None else words
        for party in self.active():
            if party.place not in self.coordinator.dealt:
                continue
            party.step(server.shares_for(self.coordinator, party.place, self.bundles))
            if party.refusal is None:
                party.state, self.masked[party.place] = client.mask(party.state, brought(party.index))
                self.feed(server.MaskedArrived(party.place), party.place)
        self.close(server.SecAggPhase.MASKED)

    def agree(self) -> None:
        """The list of survivors goes out; in the mode ``consistent`` signatures come back."""
        if self.terms.mode == "semi_honest":
            return
        for party in self.asked():
            agreement = party.step(server.survivors_for(self.coordinator))
            if agreement is not None:
                self.agreements[party.place] = agreement
                self.feed(server.Agreed(party.place, agreement), party.place)
        self.close(server.SecAggPhase.AGREEMENT)

    def reveal(self, change: Callable[[Party, Reveal], Reveal] = lambda party, reveal: reveal) -> None:
        """The last question goes out, shares come back."""
        for party in self.asked():
            if self.terms.mode == "semi_honest":
                answer = party.step(server.survivors_for(self.coordinator))
            else:
                answer = party.step(server.agreements_for(self.coordinator, party.place, self.agreements))
            if answer is not None:
                self.reveals[party.place] = change(party, answer)
                self.feed(server.Revealed(party.place, self.reveals[party.place]), party.place)
        self.close(server.SecAggPhase.REVEAL)

    def asked(self) -> list[Party]:
        return [party for party in self.active() if party.place in self.coordinator.arrived]

    def total(self) -> RingVector:
        """The sum that the coordinator ends with."""
        total = np.zeros(SPEC.length, np.uint32)
        for place in self.coordinator.survivors:
            total += unpack(self.masked[place], SPEC)
        unmask.remove(total, server.plan_masks(self.coordinator))
        return reduced(total, SPEC)

    def expected(self) -> RingVector:
        """The sum of the survivors' vectors in the clear."""
        total = np.zeros(SPEC.length, np.uint32)
        for place in self.coordinator.survivors:
            total += vector(self.at(place).index)
        return reduced(total, SPEC)


def start(
    clients: int,
    agreed: SecureTerms | None = None,
    told: Mapping[int, Mapping[str, Any]] = {},
    restarts: bool = False,
) -> Attempt:
    """An attempt whose clients have brought their keys. told: what a device was told otherwise (`client.begin`)."""
    agreed = agreed or terms()
    parties: list[Party] = []
    keys: list[AdvertiseKeys] = []
    advertised: list[server.Advertised] = []
    for index in range(clients):
        entropy = entropy_of(f"client {index}")
        arguments: dict[str, Any] = {"terms": agreed, "plan": PLAN, "model": MODEL, **told.get(index, {})}
        state, brought = client.begin(**arguments, device=device(index), identity=identity(index), entropy=entropy)
        parties.append(Party(index, state, entropy, restarts=restarts))
        keys.append(sent(brought))
        advertised.append(server.Advertised(device(index), identity(index).public, keys[-1]))
    attempt = Attempt(agreed, parties, keys, server.open_attempt(agreed, plan=PLAN, model=MODEL), restarts)
    for index, event in enumerate(advertised):
        attempt.feed(event, index)
    return attempt


def run(attempt: Attempt, drops: Mapping[str, Iterable[int]] = {}) -> Attempt:
    """All phases; drops: the places that are silent from ``shares``, ``masked``, ``agreement`` or ``reveal`` on."""
    attempt.form()
    for name, phase in (
        ("shares", attempt.deal),
        ("masked", attempt.mask),
        ("agreement", attempt.agree),
        ("reveal", attempt.reveal),
    ):
        attempt.gone |= set(drops.get(name, ()))
        if not attempt.coordinator.phase.final:
            phase()
    return attempt
