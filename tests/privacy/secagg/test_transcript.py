"""The golden transcript: clients and coordinator say, byte for byte, what vectors/secagg_transcript.json says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.privacy.secagg import client, server, unmask
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import reduced, unpack
from coterie.protocol import secagg
from coterie.protocol.conversion import to_json
from coterie.protocol.secagg import Agreement, Reveal, SecureTerms, Shares
from coterie.protocol.signing import SigningKey

FILE = json.loads((Path(__file__).parents[3] / "protocol" / "vectors" / "secagg_transcript.json").read_text("ascii"))
SESSIONS: dict[str, Any] = FILE["sessions"]
CLIENTS = [(mode, index) for mode, session in SESSIONS.items() for index in range(len(session["clients"]))]


class Replayed:
    """The entropy of a client, drawn again."""

    def __init__(self, entropy: str) -> None:
        self.left = bytes.fromhex(entropy)

    def __call__(self, count: int) -> bytes:
        taken, self.left = self.left[:count], self.left[count:]
        return taken


def heard(item: Any) -> Any:
    return getattr(secagg, item["kind"]).model_validate(item["message"])


def replay(mode: str, index: int, steps: int | None = None) -> tuple[client.ClientState, Replayed, SigningKey]:
    """The client after its first steps, each of which it takes as the transcript says."""
    session = SESSIONS[mode]
    told = session["clients"][index]
    identity, entropy = SigningKey.from_seed(bytes.fromhex(told["identity_seed"])), Replayed(told["entropy"])
    state, keys = client.begin(
        SecureTerms.model_validate(session["terms"]),
        device=told["device"],
        plan=session["plan"],
        model=session["model"],
        identity=identity,
        floor=session["floor"],
        entropy=entropy,
    )
    assert told["steps"][0]["says"]["message"] == keys.model_dump(mode="json")
    for step in told["steps"][1:steps]:
        if "masks" in step:
            state, packed = client.mask(state, np.array(step["masks"], np.uint32))
            assert packed.hex() == step["masked"]
            continue
        state, answer = client.step(state, heard(step["hears"]), identity=identity, entropy=entropy)
        said = None if answer is None else {"kind": type(answer).__name__, "message": answer.model_dump(mode="json")}
        assert said == step["says"]
    return state, entropy, identity


@pytest.mark.parametrize("mode,index", CLIENTS)
def test_clients_say_what_the_transcript_says(mode: str, index: int) -> None:
    state, entropy, _ = replay(mode, index)
    assert entropy.left == b""
    if SESSIONS[mode]["clients"][index]["place"] in SESSIONS[mode]["survivors"]:
        assert state.awaits == "outcome"
        assert state.context.digest.hex() == SESSIONS[mode]["context"]


@pytest.mark.parametrize("number", range(len(FILE["refused"])))
def test_clients_refuse_what_the_transcript_says(number: int) -> None:
    case = FILE["refused"][number]
    state, entropy, identity = replay(case["mode"], case["client"], case["after"])
    with pytest.raises(CoterieError) as caught:
        client.step(state, heard(case["hears"]), identity=identity, entropy=entropy)
    assert caught.value.reason == case["code"], case["why"]


@pytest.mark.parametrize("mode", SESSIONS)
def test_the_coordinator_comes_to_the_sum_that_the_transcript_says(mode: str) -> None:
    session = SESSIONS[mode]
    said: dict[str, dict[int, Any]] = {"Shares": {}, "Agreement": {}, "Reveal": {}}
    masked: dict[int, bytes] = {}
    vectors: dict[int, list[int]] = {}
    advertised: list[server.Advertised] = []
    for told in session["clients"]:
        place = told["place"]
        identity = SigningKey.from_seed(bytes.fromhex(told["identity_seed"])).public
        advertised.append(server.Advertised(told["device"], identity, heard(told["steps"][0]["says"])))
        for step in told["steps"][1:]:
            if "masks" in step:
                masked[place], vectors[place] = bytes.fromhex(step["masked"]), step["masks"]
            elif step["says"] is not None:
                said[step["says"]["kind"]][place] = heard(step["says"])
    shares: dict[int, Shares] = said["Shares"]
    agreements: dict[int, Agreement] = said["Agreement"]
    reveals: dict[int, Reveal] = said["Reveal"]
    events: list[server.ServerEvent] = [server.Shared(place, shares[place]) for place in sorted(shares)]
    events += [server.MaskedArrived(place) for place in sorted(masked)]
    events += [server.PhaseDeadline()]
    events += [server.Agreed(place, agreements[place]) for place in sorted(agreements)]
    events += [server.Revealed(place, reveals[place]) for place in sorted(reveals)]
    state = server.begin(
        SecureTerms.model_validate(session["terms"]), advertised, plan=session["plan"], model=session["model"]
    )
    for event in events:
        state = server.step(state, event)
    assert state.phase is server.SecAggPhase.SUMMED
    assert to_json(state.parameters) == session["parameters"]
    assert (state.roster, state.context.digest.hex()) == (session["roster"], session["context"])
    assert list(state.survivors) == session["survivors"]
    masks = server.plan_masks(state)
    assert [[mask.seed.hex(), mask.sign] for mask in masks] == session["masks"]
    spec = vector_spec(state.terms.sections)
    total = np.zeros(spec.length, np.uint32)
    for data in masked.values():
        total += unpack(data, spec)
    unmask.remove(total, masks)
    assert reduced(total, spec).tolist() == session["sum"]
    clear = sum(np.array(vectors[place], np.uint32) for place in session["survivors"])
    assert reduced(np.asarray(clear, np.uint32), spec).tolist() == session["sum"]
