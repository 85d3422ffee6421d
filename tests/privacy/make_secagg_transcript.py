"""Makes protocol/vectors/secagg_transcript.json: `python tests/privacy/make_secagg_transcript.py` rewrites the file.

Two whole attempts of five clients, one in each mode, of which one client drops out after it has dealt its shares: every
byte that was drawn, every message, every masked vector, the secrets that were opened and the sum. All secrets are
pieces of SHAKE-256 streams, so the file is the same in every run.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from coterie.errors import CoterieError
from coterie.privacy.secagg import client, server, unmask
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import reduced, unpack
from coterie.privacy.secagg.roster import keys_message
from coterie.privacy.secagg.survivors import survivors_digest, to_bits
from coterie.protocol.conversion import to_json
from coterie.protocol.secagg import (
    Agreement,
    Agreements,
    Roster,
    SecureMode,
    SecureTerms,
    Shares,
    SharesFor,
    Survivors,
    ToClient,
)
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.signing import SigningKey

Json = dict[str, Any]
FILE = "secagg_transcript.json"
FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
PLAN, MODEL = "aa" * 32, "bb" * 32
CLIENTS, DROPPED = 5, 3
SECTIONS = (
    SecureSection(name="counts", encoding="exact", values=2, bits=13, top=100),
    SecureSection(name="delta", encoding="grid", values=7, bits=20, top=1023, norm=10.0),
    SecureSection(name="metrics", encoding="fixed", values=1, bits=32, top=1 << 20, low=-64.0, step=0.25),
)
SPEC = vector_spec(SECTIONS)


class Drawn:
    """Entropy that can be repeated, and everything that was drawn."""

    def __init__(self, name: str) -> None:
        self.name, self.taken = name, b""

    def __call__(self, count: int) -> bytes:
        start = len(self.taken)
        self.taken = hashlib.shake_256(self.name.encode("ascii")).digest(start + count)
        return self.taken[start:]


def terms(mode: SecureMode) -> SecureTerms:
    return SecureTerms(
        attempt="att_0193" + "5" * 28,
        mode=mode,
        corrupt=0.1,
        dropout=0.2,
        min_clients=4,
        max_clients=8,
        weight_cap=10,
        sections=SECTIONS,
        noise=None,
        phase_ms=60_000,
    )


def dumped(message: BaseModel) -> Json:
    return {"kind": type(message).__name__, "message": message.model_dump(mode="json")}


def session(mode: SecureMode) -> tuple[Json, list[Json]]:
    """One attempt, and the messages that its clients must refuse."""
    agreed = terms(mode)
    seeds = [hashlib.sha256(f"identity {index}".encode("ascii")).digest() for index in range(CLIENTS)]
    identities = [SigningKey.from_seed(seed) for seed in seeds]
    drawn = [Drawn(f"client {index} {mode}") for index in range(CLIENTS)]
    devices = [f"dev_{index:032x}" for index in range(CLIENTS)]
    vectors = [
        reduced(
            np.frombuffer(hashlib.shake_256(f"vector {index}".encode("ascii")).digest(4 * SPEC.length), "<u4"), SPEC
        )
        for index in range(CLIENTS)
    ]
    states: list[client.ClientState] = []
    said: list[list[Json]] = [[] for _ in range(CLIENTS)]
    advertised: list[server.Advertised] = []
    for index in range(CLIENTS):
        state, keys = client.begin(
            agreed,
            device=devices[index],
            plan=PLAN,
            model=MODEL,
            identity=identities[index],
            floor=4,
            entropy=drawn[index],
        )
        states.append(state)
        said[index].append({"hears": None, "says": dumped(keys)})
        advertised.append(server.Advertised(devices[index], identities[index].public, keys))
    attempt = server.begin(agreed, advertised, plan=PLAN, model=MODEL)
    position_of = {entry.device: entry.position for entry in attempt.entries}
    places = [position_of[device] for device in devices]
    index_of = {place: index for index, place in enumerate(places)}

    def tell(index: int, message: ToClient) -> Any:
        states[index], answer = client.step(states[index], message, identity=identities[index], entropy=drawn[index])
        said[index].append({"hears": dumped(message), "says": None if answer is None else dumped(answer)})
        return answer

    refused: list[Json] = []

    def refuse(index: int, message: ToClient, why: str) -> None:
        """The message at this point of the client's steps, and the code with which it is refused."""
        try:
            client.step(states[index], message, identity=identities[index], entropy=Drawn("refused"))
        except CoterieError as error:
            case = {"mode": mode, "client": index, "after": len(said[index]), "why": why, "hears": dumped(message)}
            refused.append({**case, "code": error.reason})
            return
        raise AssertionError(why)

    bundles: dict[int, Shares] = {}
    for place in range(CLIENTS):
        index, roster = index_of[place], server.roster_for(attempt, place)
        if place == 0:
            refuse(index, roster.model_copy(update={"threshold": 2}), "a lower threshold than the client computes")
            few = Roster.model_validate({**roster.model_dump(), "clients": 3})
            refuse(index, few, "a cohort below the floor")
        bundles[place] = tell(index, roster)
        attempt = server.step(attempt, server.Shared(place, bundles[place]))
    masked: dict[int, bytes] = {}
    for place in range(CLIENTS):
        index, boxes = index_of[place], server.shares_for(attempt, place, bundles)
        if place == 0:
            crossed = {**boxes.boxes, 1: boxes.boxes[2], 2: boxes.boxes[1]}
            refuse(index, SharesFor(boxes=crossed), "a box from another neighbour than it is said to be")
        tell(index, boxes)
        if place == DROPPED:
            continue
        states[index], masked[place] = client.mask(states[index], vectors[index])
        said[index].append({"masks": vectors[index].tolist(), "masked": masked[place].hex()})
        attempt = server.step(attempt, server.MaskedArrived(place))
    attempt = server.step(attempt, server.PhaseDeadline())
    asked = [place for place in range(CLIENTS) if place != DROPPED]

    def listed(alive: set[int]) -> Survivors:
        bits, dealt = to_bits(alive, CLIENTS), to_bits(range(CLIENTS), CLIENTS)
        return Survivors(alive=bits, dealt=dealt, digest=survivors_digest(attempt.context, bits, dealt))

    first = index_of[0]
    refuse(first, listed({1, 2, 3, 4}), "a list of survivors without the reader")
    refuse(first, listed({0, 1, 2}), "fewer survivors than the floor")
    refuse(first, listed({0, 1, 2, 4}).model_copy(update={"digest": "00" * 32}), "a digest of another list")
    agreements: dict[int, Agreement] = {}
    if mode == "consistent":
        for place in asked:
            agreements[place] = tell(index_of[place], server.survivors_for(attempt))
            attempt = server.step(attempt, server.Agreed(place, agreements[place]))
        good = server.agreements_for(attempt, 0, agreements).signatures
        refuse(first, Agreements(signatures=dict(list(good.items())[:2])), "fewer agreements than a quorum")
        refuse(first, Agreements(signatures={**good, 1: good[2]}), "another client's signature")
    for place in asked:
        question = (
            server.survivors_for(attempt)
            if mode == "semi_honest"
            else server.agreements_for(attempt, place, agreements)
        )
        answer = tell(index_of[place], question)
        attempt = server.step(attempt, server.Revealed(place, answer))
    refuse(first, listed({0, 1, 2, 3}), "a second, different list of survivors")
    if attempt.opened is None:
        raise AssertionError(attempt.detail)
    total = np.zeros(SPEC.length, np.uint32)
    for data in masked.values():
        total += unpack(data, SPEC)
    masks = server.plan_masks(attempt)
    unmask.remove(total, masks)
    made: Json = {
        "terms": agreed.model_dump(mode="json"),
        "plan": PLAN,
        "model": MODEL,
        "floor": 4,
        "parameters": to_json(attempt.parameters),
        "roster": attempt.roster,
        "context": attempt.context.digest.hex(),
        "clients": [
            {
                "device": devices[index],
                "identity_seed": seeds[index].hex(),
                "place": places[index],
                "entropy": drawn[index].taken.hex(),
                "signs": keys_message(
                    agreed,
                    plan=PLAN,
                    model=MODEL,
                    device=devices[index],
                    mask_key=advertised[index].keys.mask_key,
                    channel_key=advertised[index].keys.channel_key,
                ).decode("ascii"),
                "steps": said[index],
            }
            for index in range(CLIENTS)
        ],
        "survivors": list(attempt.survivors),
        "seeds": {str(place): seed.hex() for place, seed in attempt.opened.seeds.items()},
        "mask_keys": {str(place): key.hex() for place, key in attempt.opened.keys.items()},
        "masks": [[mask.seed.hex(), mask.sign] for mask in masks],
        "sum": reduced(total, SPEC).tolist(),
    }
    return made, refused


def transcript() -> Json:
    sessions: Json = {}
    refused: list[Json] = []
    for mode in ("semi_honest", "consistent"):
        sessions[mode], cases = session(mode)
        refused += cases
    return {
        "title": "Two attempts of secure aggregation among five clients, of which one drops out after dealing shares",
        "provenance": "made by tests/privacy/make_secagg_transcript.py with coterie's Python implementation",
        "how": "Begin each client with terms, plan, model, floor and its identity, give it the entropy in the order in "
        "which it asks (mask key, channel key, seed; then the coefficients for the seed and those for the mask key, "
        "as secagg_shares.json says, and a nonce for each box), and tell it what it hears: it says just what stands "
        "there. `masks` is the vector and `masked` what leaves, packed. A message in `refused` is refused with its "
        "code by the client that has taken the first `after` of its steps.",
        "sessions": sessions,
        "refused": refused,
    }


def rendered() -> dict[str, str]:
    """File name → content, as it is committed."""
    return {FILE: json.dumps(transcript(), indent=1, allow_nan=False) + "\n"}


if __name__ == "__main__":
    for file_name, content in rendered().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
