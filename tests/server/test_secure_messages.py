"""What clients of a secure round say over HTTP: the same again counts once, and lies cost their sender alone."""

import json

import numpy as np
from secure_kit import (
    LOOSE,
    Member,
    events_of,
    leased,
    mean,
    run,
    started,
    together,
    until_clean,
    weights,
)
from server_kit import Opener, update

from coterie.privacy.secagg import client
from coterie.privacy.secagg.roster import model_digest
from coterie.protocol.signing import SigningKey


def test_what_was_said_is_said_again_and_nothing_else_counts(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            one, two = members[:2]
            early = await one.device.upload(one.task, update(one.task))
            assert (early.status_code, early.json()["code"]) == (409, "phase_early")
            await one.do("keys")
            again = await one.say("keys", one.keys)
            assert (again.status_code, again.json()["state"]) == (200, "already")
            differs = await one.device.send("POST", one.path("keys"), other_keys(one, one.device.key))
            assert (differs.status_code, differs.json()["code"]) == (409, "message_differs")
            assert (await one.device.send("GET", one.path("roster"))).status_code == 204
            not_yet = await one.device.send("POST", one.path("reveal"), b'{"self_shares":{},"mask_shares":{}}')
            assert (not_yet.status_code, not_yet.json()["code"]) == (409, "phase_early")
            await together(members[1:], ["keys"])
            # A request that was recorded and is sent again as it was is refused by its nonce.
            await one.do("shares")
            body = one.said["shares"]
            nonce = one.device.nonce
            assert (await one.device.send("POST", one.path("shares"), body, nonce=nonce)).json()["state"] == "already"
            assert (await one.device.send("POST", one.path("shares"), body, nonce=nonce)).status_code == 401
            changed = json.loads(body)
            changed["commitment"] = "00" * 32
            differs = await one.device.send("POST", one.path("shares"), json.dumps(changed).encode())
            assert (differs.status_code, differs.json()["code"]) == (409, "message_differs")
            await together(members[1:], ["shares"])
            await together(members, ["masked"])
            again = await two.device.upload(two.task, two.masked())
            assert (again.status_code, again.json()["state"]) == (200, "already")
            bent = bytearray(two.masked())
            bent[-1] ^= 1
            twice = await two.device.upload(two.task, bytes(bent))
            assert (twice.status_code, twice.json()["code"]) == (409, "task_finished")
            late = await one.device.send("POST", one.path("shares"), json.dumps(changed).encode())
            assert (late.status_code, late.json()["code"]) == (409, "message_differs")
            assert (await one.say("shares", body)).json()["state"] == "already"
            await together(members, ["reveal"])
            await operator.finished(experiment)
            await until_clean(operator)
            over = await one.say("reveal", one.said["reveal"])
            assert (over.status_code, over.json()["code"], over.json()["cause"]) == (410, "attempt_over", "summed")
            (entry,) = await operator.rounds(experiment)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)

    run(work())


def test_what_a_lying_client_sends_is_refused_and_the_others_go_on(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 6)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0, 4.0))
            honest, liar = members[:5], members[5]
            stolen = await liar.device.send("POST", liar.path("keys"), other_keys(liar, SigningKey.generate()))
            assert (stolen.status_code, stolen.json()["code"]) == (401, "signature_invalid")
            await together(members, ["keys"])
            await together(honest, ["shares"])
            message = await liar.told("roster")
            assert liar.state is not None
            liar.state, dealt = client.step(liar.state, message, identity=liar.device.key)
            assert dealt is not None
            body = dealt.model_dump(mode="json")
            few = {**body, "boxes": dict(list(body["boxes"].items())[1:])}
            refused = await liar.say("shares", json.dumps(few).encode())
            assert (refused.status_code, refused.json()["code"]) == (422, "secagg_box")
            assert (await liar.say("shares", dealt.model_dump_json().encode())).status_code == 200
            await together(honest, ["masked"])
            liar.state, _ = client.step(liar.state, await liar.told("shares"), identity=liar.device.key)
            for bad, code in ((liar.masked() + b"\0", "wrong_format"), (bent_header(liar), "wrong_task")):
                answer = await liar.device.upload(liar.task, bad)
                assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
            assert (await liar.device.upload(liar.task, liar.masked())).status_code == 200
            await together(honest, ["reveal"])
            _, reveal = client.step(liar.state, await liar.told("survivors"), identity=liar.device.key)
            assert reveal is not None
            body = reveal.model_dump(mode="json")
            moved = json.dumps({"self_shares": {}, "mask_shares": body["self_shares"]})
            refused = await liar.say("reveal", moved.encode())
            assert (refused.status_code, refused.json()["code"]) == (422, "secagg_reveal")
            # Shares that are not those that it was entrusted with: found out when the sum is opened, and told.
            body["self_shares"] = {place: share[:-2] + "AA" for place, share in body["self_shares"].items()}
            assert (await liar.say("reveal", json.dumps(body).encode())).status_code == 200
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)
            (summed,) = [event for event in await events_of(operator, experiment) if event["type"] == "attempt.summed"]
            # Shares beyond the threshold are not looked at.
            assert {revealer for _, revealer in summed["blamed"]} <= {liar.device.id}

    run(work())


def other_keys(member: Member, identity: SigningKey) -> bytes:
    """Fresh keys for a member's task, signed by whoever."""
    keys = client.begin(
        member.terms,
        device=member.device.id,
        plan=member.task.plan.id,
        model=model_digest(member.task),
        identity=identity,
    )[1]
    return keys.model_dump_json().encode()


def bent_header(member: Member) -> bytes:
    """A masked vector that says it is of another task, of the same length."""
    other = member.task.id[:-1] + ("0" if member.task.id[-1] != "0" else "1")
    return member.masked().replace(member.task.id.encode(), other.encode())
