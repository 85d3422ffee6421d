"""What a token for one population meets, and what nobody can give to themselves."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest
from principals_kit import Place, open_place
from server_kit import Opener, once

from coterie.protocol.control import TokenKind
from coterie.server.auth.caller import Caller
from coterie.server.control.events import follow
from coterie.server.control.tokens import JOINING
from coterie.server.store import tokens
from tests.held_clock import held
from tests.patience import patience


def at_place(coordinator: Opener, story: Callable[[Place], Awaitable[None]]) -> None:
    """Tell a story on a coordinator with two populations."""

    async def work() -> None:
        async with coordinator() as operator:
            await story(await open_place(operator))

    asyncio.run(work())


def asked(kind: str, population: str | None) -> dict[str, Any]:
    return {"kind": kind, "population": population, **({"max_clients": 5} if kind == "edge" else {})}


@pytest.mark.parametrize("scope", [None, "people"])
def test_an_operator_makes_and_revokes_only_tokens_with_which_devices_join(
    scope: str | None, coordinator: Opener
) -> None:
    async def story(place: Place) -> None:
        operator = await place.holder("operator", scope)
        for kind in get_args(TokenKind):
            for population in ("people", "others", None):
                answer = await operator.call("POST", "/v1/tokens", json=asked(kind, population), headers=once())
                if kind not in JOINING:
                    assert (answer.status_code, answer.json()["code"]) == (403, "token_role"), (kind, population)
                elif population is None:
                    assert (answer.status_code, answer.json()["code"]) == (422, "token_population")
                elif scope not in (None, population):
                    assert (answer.status_code, answer.json()["code"]) == (403, "token_scope")
                else:
                    assert answer.status_code == 201
        for kind in ("operator", "researcher", "auditor"):
            made = await place.token(kind, "people")
            answer = await operator.call("DELETE", f"/v1/tokens/{made['id']}")
            assert (answer.status_code, answer.json()["code"]) == (403, "token_role")
        administrator = (await place.token("admin"))["id"]
        answer = await operator.call("DELETE", f"/v1/tokens/{administrator}")
        assert answer.status_code == (403 if scope is None else 404)
        own = next(row["id"] for row in (await operator.ok("GET", "/v1/tokens"))["items"] if row["kind"] == "operator")
        answer = await operator.call("DELETE", f"/v1/tokens/{own}")
        assert (answer.status_code, answer.json()["code"]) == (409, "token_in_use")

    at_place(coordinator, story)


def test_an_administrators_token_is_for_all_populations(coordinator: Opener) -> None:
    async def story(place: Place) -> None:
        answer = await place.operator.call("POST", "/v1/tokens", json=asked("admin", "people"), headers=once())
        assert (answer.status_code, answer.json()["code"]) == (422, "token_population")

    at_place(coordinator, story)


def test_a_population_of_others_and_one_that_is_not_there_are_refused_alike(coordinator: Opener) -> None:
    async def story(place: Place) -> None:
        stranger = await place.holder("researcher", "others")
        for path in ("/v1/populations/{}", "/v1/populations/{}/budget", "/v1/experiments?population={}"):
            told = [(await stranger.call("GET", path.format(name))) for name in ("people", "nobody")]
            assert [answer.status_code for answer in told] == [403, 403]
            assert told[0].json()["detail"].replace("people", "nobody") == told[1].json()["detail"]
        missing = f"exp_{'0' * 32}"
        told = [(await stranger.call("GET", f"/v1/experiments/{name}")) for name in (place.experiment, missing)]
        assert [answer.status_code for answer in told] == [404, 404]
        assert told[0].json()["detail"].replace(place.experiment, missing) == told[1].json()["detail"]
        view = await place.operator.state(place.experiment)
        assert (await stranger.call("GET", f"/v1/experiments/{view['name']}")).status_code == 404

    at_place(coordinator, story)


def test_a_blob_that_others_sent_is_used_by_nobody_who_only_knows_its_digest(coordinator: Opener) -> None:
    async def story(place: Place) -> None:
        stranger = await place.holder("researcher", "others")
        request = {**place.request, "population": "others"}
        answer = await stranger.call("POST", "/v1/experiments", json=request, headers=once())
        assert (answer.status_code, answer.json()["code"]) == (409, "blob_missing")
        sent = await stranger.request("others")
        answer = await stranger.call("POST", "/v1/experiments", json=sent.model_dump(mode="json"), headers=once())
        assert answer.status_code == 201
        rows = {"sha256": place.rows_digest, "size": len(place.rows)}
        request = {**sent.model_dump(mode="json"), "evaluation": rows}
        answer = await stranger.call("POST", "/v1/experiments", json=request, headers=once())
        assert (answer.status_code, answer.json()["code"]) == (409, "blob_missing")

    at_place(coordinator, story)


def test_an_idempotency_key_is_its_tokens_alone(coordinator: Opener) -> None:
    async def story(place: Place) -> None:
        key, body = once(), asked("enrol", "people")
        first = await (await place.holder("operator", "people")).ok("POST", "/v1/tokens", json=body, headers=key)
        second = await (await place.holder("operator", "people")).ok("POST", "/v1/tokens", json=body, headers=key)
        assert first["id"] != second["id"]

    at_place(coordinator, story)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_an_open_stream_of_events_ends_with_its_token(how: str, coordinator: Opener) -> None:
    async def story(place: Place) -> None:
        with held():  # however long it takes to open the stream, the token has not expired before
            made = await place.token("researcher", "people", **({"expires_s": 1} if how == "expired" else {}))
            here = place.operator.app.state.coordinator
            expires = None
            if how == "expired":
                async with here.storage.database.read() as session:
                    row = await tokens.find(session, made["id"])
                    expires = None if row is None else row.expires_at
            caller = Caller(token=made["id"], role="researcher", population="people", expires_at=expires)

            async def whole() -> list[str]:
                return [chunk.decode() async for chunk in follow(here, caller, 0, None)]

            stream = asyncio.create_task(whole())
            await asyncio.sleep(0.1)
            assert not stream.done()
        if how == "revoked":
            await place.operator.ok("DELETE", f"/v1/tokens/{made['id']}")
            await place.operator.ok("POST", f"/v1/experiments/{place.experiment}/stop")
        told = await asyncio.wait_for(stream, patience(10))
        seen = [json.loads(text.split("data: ")[1]) for text in told if text.startswith("id: ")]
        assert seen and not any(event["type"] == "experiment.finished" for event in seen)
        assert {event["data"].get("population", "people") for event in seen} == {"people"}

    at_place(coordinator, story)
