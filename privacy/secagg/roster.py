"""Who takes part in an attempt: what a client signs when it brings its keys, and what the roster's digest covers."""

import base64
import hashlib
from collections.abc import Iterable
from functools import lru_cache

from coterie.privacy.secagg.context import DOMAIN, AttemptContext
from coterie.privacy.secagg.graph import order
from coterie.privacy.secagg.parameters import Parameters
from coterie.protocol.canonical import canonical_json, digest_of, parse_json
from coterie.protocol.device import Task
from coterie.protocol.secagg import AdvertiseKeys, RosterEntry, SecureTerms
from coterie.protocol.signing import Domain, verify

_OF_ONE_DEVICE = frozenset({"id", "device", "seed", "lease_ms", "upload_limit", "secure", "signature"})
"""Of a task, what is its device's own, what cannot change a vector but only keep it back, and the terms, which have a
digest of their own."""


def model_digest(task: Task) -> str:
    """What all clients of an attempt must have been asked alike, as 64 hex digits: SHA-256 of the model version and of
    everything else that the task says, but for what is one device's own.

    The version alone would not do: a learning rate of zero for all clients but one makes the sum that one's update, as
    a crafted model does (see `context`). A field that is unknown here counts too.
    """
    return digest_of(task.model_dump(mode="json", exclude=set(_OF_ONE_DEVICE), exclude_unset=True))


def terms_digest(terms: SecureTerms) -> str:
    """What all clients of an attempt must have been told alike: SHA-256 of the terms as canonical JSON, 64 hex digits.

    Everything counts, the public norms and unknown fields too, but for `phase_ms`, which is no more than patience.
    """
    return _digest_of(terms.model_dump_json(exclude={"phase_ms"}).encode("utf-8"))


@lru_cache(maxsize=64)
def _digest_of(text: bytes) -> str:
    return digest_of(parse_json(text))


def keys_message(terms: SecureTerms, *, plan: str, model: str, device: str, mask_key: str, channel_key: str) -> bytes:
    """What a device signs in the domain SECURE_KEYS: its keys, and everything that it was told they are for.

    model: see `model_digest`. A device that was given another model, plan or terms, or was asked to train otherwise,
    signs something else, and no other client takes its keys.
    """
    return canonical_json(
        {
            "attempt": terms.attempt,
            "terms": terms_digest(terms),
            "plan": plan,
            "model": model,
            "device": device,
            "mask_key": mask_key,
            "channel_key": channel_key,
        }
    )


def verify_keys(
    terms: SecureTerms, *, plan: str, model: str, device: str, identity: str, keys: AdvertiseKeys | RosterEntry
) -> None:
    """Raise errors.Unauthenticated (``signature_invalid``) unless the device signed these keys for just this."""
    message = keys_message(
        terms, plan=plan, model=model, device=device, mask_key=keys.mask_key, channel_key=keys.channel_key
    )
    verify(identity, Domain.SECURE_KEYS, message, keys.signature)


def entry_bytes(entry: RosterEntry) -> bytes:
    """An entry without its place, each part of a fixed length: device, identity, mask key, channel key, signature."""
    keys = bytes.fromhex(entry.identity + entry.mask_key + entry.channel_key)
    return entry.device.encode("ascii") + keys + base64.b64decode(entry.signature)


def roster_digest(entries: Iterable[RosterEntry]) -> str:
    """SHA-256 over all entries in the order of their places, as 64 hex digits."""
    digest = hashlib.sha256(DOMAIN + b"roster\n")
    for entry in entries:
        digest.update(entry_bytes(entry))
    return digest.hexdigest()


def ordered(keys: Iterable[AdvertiseKeys | RosterEntry], attempt: str) -> tuple[int, ...]:
    """Which of `keys` stands at each place: `graph.order` of both public keys of each client."""
    return order([bytes.fromhex(each.mask_key + each.channel_key) for each in keys], attempt)


def context_of(terms: SecureTerms, *, plan: str, model: str, parameters: Parameters, roster: str) -> AttemptContext:
    """What keys, boxes and signatures of the attempt are bound to, once there is a roster."""
    return AttemptContext(
        attempt=terms.attempt,
        plan=plan,
        model=model,
        spec=terms_digest(terms),
        parameters=parameters,
        roster=roster,
    )
