"""A client of secure aggregation as a machine: a state, messages, and one literal table. No clock, socket or file.

    begin(terms, …)        -> (state, AdvertiseKeys)       two fresh key pairs, signed
    step(state, message)   -> (state, answer | None)       what the coordinator says, and what the client says to it
    mask(state, vector)    -> (state, bytes)               the masked vector, packed for its upload

The host keeps the new state durably **before** it sends an answer. Then the client never says two things in one phase:

* the same message again, after a restart or a lost connection, is answered by the very same bytes, from the state;
* another message for a phase that was answered is refused (``secagg_repeated``), one for a later phase too
  (``secagg_phase``);
* a state that is lost cannot be made again: the client is out of this attempt, which goes on without it.

Every refusal raises and says nothing to the coordinator; the host then forgets the state and sends no more. Even a
host that did not would answer each phase at most once. The protocol, and where each of its checks is, are in
docs/security.md; the rules are in `coterie.privacy.secagg.client_rules`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import urandom
from typing import Any, TypeAlias

from pydantic import BaseModel

from coterie import errors
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.secagg import client_rules as rules
from coterie.privacy.secagg.client_rules import Host, InputVector
from coterie.privacy.secagg.client_state import Answered, ClientSecrets, ClientState, SecAggClientPhase
from coterie.privacy.secagg.endorsed import NO_ENDORSEMENT, EndorsementRule
from coterie.privacy.secagg.keys import KeyPair
from coterie.privacy.secagg.parameters import LEAST_CLIENTS
from coterie.privacy.secagg.ring import RingVector
from coterie.privacy.secagg.roster import keys_message
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.secagg import (
    AdvertiseKeys,
    Agreement,
    Agreements,
    Outcome,
    Reveal,
    Roster,
    RosterEntry,
    SecureTerms,
    Shares,
    SharesFor,
    Survivors,
    ToClient,
)
from coterie.protocol.signing import Domain, SigningKey

__all__ = ["LEAST_CLIENTS", "TABLE", "ClientState", "SecAggClientPhase", "begin", "diagram", "mask", "step"]

Answer: TypeAlias = Shares | Agreement | Reveal


@dataclass(frozen=True)
class SecAggClientRule:
    """One entry of the table: the function, where it may lead, and what it may answer."""

    apply: Callable[..., tuple[ClientState, Any]]
    leads_to: tuple[SecAggClientPhase, ...]
    answers: tuple[type[Any], ...] = ()


_END = SecAggClientRule(rules.take_outcome, (SecAggClientPhase.ENDED,))

TABLE: Mapping[SecAggClientPhase, Mapping[type[Any], SecAggClientRule]] = {
    SecAggClientPhase.ROSTER: {
        Roster: SecAggClientRule(rules.take_roster, (SecAggClientPhase.SHARES,), (Shares,)),
        Outcome: _END,
    },
    SecAggClientPhase.SHARES: {
        SharesFor: SecAggClientRule(rules.take_shares, (SecAggClientPhase.VECTOR,)),
        Outcome: _END,
    },
    SecAggClientPhase.VECTOR: {
        InputVector: SecAggClientRule(rules.mask_vector, (SecAggClientPhase.SURVIVORS,), (bytes,)),
        Outcome: _END,
    },
    SecAggClientPhase.SURVIVORS: {
        InputVector: SecAggClientRule(rules.mask_again, (SecAggClientPhase.SURVIVORS,), (bytes,)),
        Survivors: SecAggClientRule(
            rules.take_survivors, (SecAggClientPhase.AGREEMENTS, SecAggClientPhase.OUTCOME), (Agreement, Reveal)
        ),
        Outcome: _END,
    },
    SecAggClientPhase.AGREEMENTS: {
        Agreements: SecAggClientRule(rules.take_agreements, (SecAggClientPhase.OUTCOME,), (Reveal,)),
        Outcome: _END,
    },
    SecAggClientPhase.OUTCOME: {
        Outcome: _END,
    },
    SecAggClientPhase.ENDED: {},
}

_PHASE_OF: Mapping[type[BaseModel], SecAggClientPhase] = {
    Roster: SecAggClientPhase.ROSTER,
    SharesFor: SecAggClientPhase.SHARES,
    Survivors: SecAggClientPhase.SURVIVORS,
    Agreements: SecAggClientPhase.AGREEMENTS,
    Outcome: SecAggClientPhase.ENDED,
}
_ANSWERS: Mapping[str, type[Answer]] = {kind.__name__: kind for kind in (Shares, Agreement, Reveal)}


def begin(
    terms: SecureTerms,
    *,
    device: str,
    plan: str,
    model: str,
    identity: SigningKey,
    floor: int = LEAST_CLIENTS,
    required: EndorsementRule = NO_ENDORSEMENT,
    endorsement: Endorsement | None = None,
    entropy: Entropy = urandom,
) -> tuple[ClientState, AdvertiseKeys]:
    """Enter an attempt: fresh keys and the fresh seed of the own mask, and the public keys to send, signed.

    terms, device, plan (its id): as the signed task says them.
    model: `roster.model_digest` of that task.
    floor: the fewest clients that this device agrees to be one of.
    required: how many of them must be endorsed, and by whom; only in the mode ``consistent`` is everybody seen.
    endorsement: of this device's identity.
    Raises errors.SecureAggregationRefused (``secagg_cohort``, ``secagg_identities``) where the terms allow no such
    attempt.
    """
    if terms.max_clients < floor:
        raise errors.SecureAggregationRefused(
            f"The task allows at most {terms.max_clients} clients; this device takes part with {floor} or more.",
            hint="Lower min_cohort in the device's policy file, if its owner agrees to be one of so few.",
            code="secagg_cohort",
        )
    if required.least and terms.mode != "consistent":
        raise errors.SecureAggregationRefused(
            f"In the mode {terms.mode} a client sees its neighbours only, so it cannot count who is endorsed.",
            hint='The researcher can choose it: SecureAggregation(mode="consistent").',
            code="secagg_identities",
        )
    mask_key, channel_key = KeyPair.generate(entropy), KeyPair.generate(entropy)
    public = {"mask_key": mask_key.public.hex(), "channel_key": channel_key.public.hex()}
    message = keys_message(terms, plan=plan, model=model, device=device, **public)
    advertised = AdvertiseKeys(**public, signature=identity.sign(Domain.SECURE_KEYS, message), endorsement=endorsement)
    state = ClientState(
        phase=SecAggClientPhase.ROSTER,
        terms=terms,
        plan=plan,
        model=model,
        floor=floor,
        advertised=RosterEntry(position=0, device=device, identity=identity.public, **advertised.model_dump()),
        secrets=ClientSecrets(mask_key.private, channel_key.private, draw(entropy, 32)),
        required=required,
    )
    return state, advertised


def step(
    state: ClientState, message: ToClient, *, identity: SigningKey, entropy: Entropy = urandom
) -> tuple[ClientState, Answer | None]:
    """What the coordinator said, and the answer to it, if there is one. Keep the state before the answer is sent.

    Raises errors.SecureAggregationRefused with the code of the check that failed; the state is unchanged then.
    """
    told = sha256_hex(message.model_dump_json().encode("utf-8"))
    rule = TABLE[state.phase].get(type(message))
    if rule is None:
        return state, _earlier_answer(state, message, told)
    if identity.public != state.advertised.identity:
        raise errors.ConfigurationError(
            "The device's identity key is not the one that it began this attempt with.", code="key_invalid"
        )
    after, answer = rule.apply(state, message, Host(identity, entropy))
    if after.phase in (state.phase, SecAggClientPhase.ENDED):
        return after, answer
    said = Answered(told) if answer is None else Answered(told, type(answer).__name__, answer.model_dump(mode="json"))
    return replace(after, answered={**state.answered, state.phase: said}), answer


def mask(state: ClientState, vector: RingVector) -> tuple[ClientState, bytes]:
    """The vector under its masks, packed; the same bytes for the same vector until the list of survivors is answered.

    vector: uint32 [n], each below its segment's modulus; it is left as it is.
    Raises errors.SecureAggregationRefused: ``secagg_vector`` (numbers outside the ring), ``secagg_second_vector``,
    ``secagg_phase``.
    """
    rule = TABLE[state.phase].get(InputVector)
    if rule is None:
        raise _out_of_turn(state, "a vector")
    return rule.apply(state, InputVector(vector))


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {SecAggClientPhase.ROSTER.value}: AdvertiseKeys"]
    for phase, row in TABLE.items():
        for kind, rule in row.items():
            lines += [f"    {phase.value} --> {target.value}: {kind.__name__}" for target in rule.leads_to]
    return "\n".join([*lines, f"    {SecAggClientPhase.ENDED.value} --> [*]"]) + "\n"


def _earlier_answer(state: ClientState, message: ToClient, digest: str) -> Answer | None:
    """The answer that was given to this very message before."""
    phase = _PHASE_OF[type(message)]
    before = state.answered.get(phase)
    if before is None:
        raise _out_of_turn(state, type(message).__name__)
    if before.digest != digest:
        raise errors.SecureAggregationRefused(
            f"The coordinator sent two different messages {type(message).__name__} in one attempt; the first one was "
            "answered, and nothing else will be.",
            hint="A coordinator that asks twice may be after both shares of a client; the attempt is over.",
            code="secagg_repeated",
        )
    return _ANSWERS[before.kind].model_validate(before.reply) if before.kind else None


def _out_of_turn(state: ClientState, what: str) -> errors.SecureAggregationRefused:
    return errors.SecureAggregationRefused(
        f"The client awaits {state.awaits}, not {what}.",
        hint="Messages come in the order of the protocol; the attempt is over for this client.",
        code="secagg_phase",
    )
