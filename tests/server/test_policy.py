"""Every route with every kind of credential, against a table written out by hand: an entry that is missing fails."""

import asyncio
from typing import Final

import httpx
import pytest
from fastapi import APIRouter
from server_kit import Device, Opener, Operator, fleet

from coterie.errors import InternalError
from coterie.protocol.signing import SigningKey
from coterie.server.app import ROUTERS, create_app
from coterie.server.auth.gate import GatedRoute, gated_router

# Which credential each route takes: nobody's, an administrator's, an enrolment token, a device's signature.
TABLE: Final = {
    "GET /": "nobody",
    "GET /healthz": "nobody",
    "GET /readyz": "nobody",
    "GET /metrics": "nobody",
    "GET /docs": "nobody",
    "GET /v1/openapi.json": "nobody",
    "GET /v1/blobs/{sha256}": "nobody",
    "HEAD /v1/blobs/{sha256}": "nobody",
    "PUT /v1/blobs/{sha256}": "admin",
    "POST /v1/populations": "admin",
    "GET /v1/populations": "admin",
    "GET /v1/populations/{name}": "admin",
    "PATCH /v1/populations/{name}": "admin",
    "GET /v1/populations/{name}/budget": "admin",
    "GET /v1/populations/{name}/budget/entries": "admin",
    "PUT /v1/populations/{name}/signers/{public}": "admin",
    "POST /v1/tokens": "admin",
    "GET /v1/tokens": "admin",
    "DELETE /v1/tokens/{token}": "admin",
    "POST /v1/experiments": "admin",
    "GET /v1/experiments": "admin",
    "GET /v1/experiments/{experiment}": "admin",
    "POST /v1/experiments/{experiment}/stop": "admin",
    "GET /v1/experiments/{experiment}/rounds": "admin",
    "GET /v1/experiments/{experiment}/models": "admin",
    "GET /v1/models/{sha256}": "admin",
    "GET /v1/devices": "admin",
    "POST /v1/devices/{device}/revoke": "admin",
    "GET /v1/events": "admin",
    "GET /v1/audit": "admin",
    "GET /v1/device/experiments/{experiment}/lineage": "device",
    "GET /v1/device/population": "enrol",
    "POST /v1/device/enrol": "enrol",
    "POST /v1/device/check-in": "device",
    "HEAD /v1/device/tasks/{task}/update": "device",
    "PATCH /v1/device/tasks/{task}/update": "device",
    "POST /v1/device/tasks/{task}/progress": "device",
    "POST /v1/device/tasks/{task}/abort": "device",
    "POST /v1/device/tasks/{task}/secure/keys": "device",
    "POST /v1/device/tasks/{task}/secure/shares": "device",
    "POST /v1/device/tasks/{task}/secure/agreement": "device",
    "POST /v1/device/tasks/{task}/secure/reveal": "device",
    "GET /v1/device/tasks/{task}/secure/{awaited}": "device",
    "POST /v1/device/withdraw": "device",  # the last, since nothing is let through after it
}
# And what each credential is good for; those that are not named, for nothing.
GOOD_FOR: Final = {"admin": "admin", "enrol": "enrol", "edge": "enrol", "device": "device", "edge aggregator": "device"}
BAD: Final = (
    "nobody",
    "garbage",
    "wrong secret",
    "revoked admin",
    "expired enrol",
    "expired edge",
    "another's signature",
)
CREDENTIALS: Final = (*BAD, *GOOD_FOR)
SIGNED: Final = ("device", "edge aggregator", "another's signature")
VALUES: Final = {
    "{sha256}": "0" * 64,
    "{name}": "none",
    "{public}": "0" * 64,
    "{token}": "tok_" + "0" * 32,
    "{experiment}": "exp_" + "0" * 32,
    "{awaited}": "roster",
    "{device}": "dev_" + "0" * 32,
    "{task}": "task_" + "0" * 32,
}
PATCH_HEADERS: Final = {"Upload-Offset": "0", "Upload-Length": "2", "Repr-Digest": f"sha-256=:{'A' * 43}=:"}


def routes() -> list[str]:
    """Every route of the application, as METHOD path: those of its routers, and there is nothing beside them."""
    assert len(create_app().routes) == len(ROUTERS)
    found = [route for router in ROUTERS for route in router.routes]
    assert all(isinstance(route, GatedRoute) for route in found)
    return [
        f"{method} {route.path}"
        for route in found
        if isinstance(route, GatedRoute)
        for method in sorted(route.methods or ())
    ]


def test_the_table_names_exactly_the_routes_there_are() -> None:
    assert sorted(routes()) == sorted(TABLE)


def test_a_route_without_a_row_cannot_be_made() -> None:
    router: APIRouter = gated_router("more")
    with pytest.raises(InternalError, match="policy table"):

        @router.get("/v1/secrets")
        async def secrets() -> None: ...


async def headers_for(operator: Operator, device: Device, credential: str, method: str, path: str) -> dict[str, str]:
    """The headers of each kind of credential."""

    async def made(**body: object) -> dict[str, str]:
        answer = await operator.ok("POST", "/v1/tokens", json=body)
        return {"id": answer["id"], "Authorization": f"Bearer {answer['token']}"}

    match credential:
        case "nobody":
            return {}
        case "garbage":
            return {"Authorization": "Bearer coterie_admin_zz"}
        case "wrong secret":
            return {"Authorization": f"Bearer {operator.token[:-4]}AAAA"}
        case "revoked admin":
            token = await made(kind="admin")
            await operator.ok("DELETE", f"/v1/tokens/{token.pop('id')}")
            return token
        case "expired enrol" | "expired edge":
            kind = {"kind": "enrol"} if credential == "expired enrol" else {"kind": "edge", "max_clients": 5}
            token = await made(**kind, population="people", expires_s=1)
            await asyncio.sleep(1.05)
            return {"Authorization": token["Authorization"]}
        case "admin":
            return {"Authorization": f"Bearer {operator.token}"}
        case "enrol":
            token = await made(kind="enrol", population="people")
            return {"Authorization": token["Authorization"]}
        case "edge":
            token = await made(kind="edge", population="people", max_clients=5)
            return {"Authorization": token["Authorization"]}
        case _:
            body = b"{}"
            fresh = operator.app.state.coordinator.nonces.issue(device.id)
            covered = PATCH_HEADERS if method == "PATCH" else {}
            return device.signed(method, path, body if method != "HEAD" else b"", fresh, covered)


async def ask(http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and problem code; an event stream is left at its head."""
    extra = PATCH_HEADERS if method == "PATCH" else {}
    content = b"" if method == "HEAD" else b"{}"
    request = http.build_request(
        method, path, content=content, headers={"Content-Type": "application/json", **extra, **headers}
    )
    answer = await http.send(request)
    return answer.status_code, answer.headers.get("Coterie-Problem", "")


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_a_route_lets_through_only_its_own_credential(credential: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            if credential == "edge aggregator":
                token = (await headers_for(operator, device, "edge", "", ""))["Authorization"].removeprefix("Bearer ")
                device = await Device(operator.http).enrol(token)
            if credential == "another's signature":
                device.key = SigningKey.generate()
            signs = credential in SIGNED
            known = None if signs else await headers_for(operator, device, credential, "", "")
            for route, needed in TABLE.items():
                if route == "GET /v1/events" and credential == "admin":
                    continue  # would be let through, and then stream for ever
                method, path = route.split(" ")
                for name, value in VALUES.items():
                    path = path.replace(name, value)
                headers = await headers_for(operator, device, credential, method, path) if known is None else known
                status, code = await ask(operator.http, method, path, headers)
                let_through = needed in ("nobody", GOOD_FOR.get(credential))
                assert (status not in (401, 403)) == let_through, (route, credential, status, code)
                assert status != 500, (route, credential)

    asyncio.run(work())


def test_a_body_that_cannot_be_parsed_is_not_read_before_the_gate(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            answer = await operator.http.post(
                "/v1/populations", content=b"{", headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 401
            answer = await operator.call(
                "POST", "/v1/populations", content=b"{", headers={"Content-Type": "application/json"}
            )
            assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")

    asyncio.run(work())
