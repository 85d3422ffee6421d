"""Every route of the application with every role and scope, by real requests: the policy table says what must come."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from fastapi import APIRouter
from principals_kit import JOINT, PUBLIC_KEY, Holder, Place, open_place
from server_kit import Opener

from coterie.errors import InternalError
from coterie.protocol.control import TokenRole
from coterie.server.app import ROUTERS, create_app
from coterie.server.auth.gate import GatedRoute, gated_router
from coterie.server.auth.policy import CREDENTIALS, POLICY, Credential, RouteRule, Scope

Route = tuple[str, str]
LIST: Final = 200
"""Of a route whose handler shows rows of a population alone: another's are left out of the list."""
ABSENT: Final = 404
REFUSED: Final = 403


@dataclass(frozen=True)
class Asked:
    """One request of a route about a thing of population `people`.

    path: with its names filled in. outside: the status for a token for another population where the handler decides.
    body: JSON or bytes.
    """

    path: Callable[[Place], str]
    outside: int = ABSENT
    body: Callable[[Place], Any] = lambda _: {}
    headers: Callable[[Place], dict[str, str]] = lambda _: {}


Part = Callable[[Place], Any]


def empty(_: Place) -> dict[str, Any]:
    """A body or headers with nothing in them."""
    return {}


def at(path: str, *, outside: int = ABSENT, body: Part = empty, headers: Part = empty) -> Asked:
    """A request of an address that is the same at every place."""
    return Asked(lambda _: path, outside, body, headers)


def of(part: str, path: str, *, outside: int = ABSENT, body: Part = empty) -> Asked:
    """A request of an address with something of the place in it: ``{}`` stands for its field `part`."""
    return Asked(lambda place: path.format(getattr(place, part)), outside, body)


MESSAGES: Final = "/v1/party/messages/messages/feature"
TASK: Final = f"/v1/device/tasks/task_{'0' * 32}"
OFFSETS: Final = {"Upload-Offset": "0", "Upload-Length": "2", "Repr-Digest": f"sha-256=:{'A' * 43}=:"}
REQUESTS: Final[dict[Route, Asked]] = {
    ("GET", "/"): at("/"),
    ("GET", "/healthz"): at("/healthz"),
    ("GET", "/readyz"): at("/readyz"),
    ("GET", "/metrics"): at("/metrics"),
    ("GET", "/docs"): at("/docs"),
    ("GET", "/v1/openapi.json"): at("/v1/openapi.json"),
    ("GET", "/v1/blobs/{sha256}"): of("model", "/v1/blobs/{}"),
    ("HEAD", "/v1/blobs/{sha256}"): of("model", "/v1/blobs/{}"),
    ("PUT", "/v1/blobs/{sha256}"): of(
        "rows_digest", "/v1/blobs/{}?kind=evaluation", outside=201, body=lambda p: p.rows
    ),
    ("POST", "/v1/populations"): at("/v1/populations", body=lambda p: p.new_population),
    ("GET", "/v1/populations"): at("/v1/populations", outside=LIST),
    ("GET", "/v1/populations/{name}"): at("/v1/populations/people"),
    ("PATCH", "/v1/populations/{name}"): at("/v1/populations/people", body=lambda _: {"min_cohort": 2}),
    ("GET", "/v1/populations/{name}/budget"): at("/v1/populations/people/budget"),
    ("GET", "/v1/populations/{name}/budget/entries"): at("/v1/populations/people/budget/entries"),
    ("PUT", "/v1/populations/{name}/signers/{public}"): at(f"/v1/populations/people/signers/{PUBLIC_KEY}"),
    ("POST", "/v1/tokens"): at("/v1/tokens", outside=REFUSED, body=lambda _: {"kind": "enrol", "population": "people"}),
    ("GET", "/v1/tokens"): at("/v1/tokens", outside=LIST),
    ("DELETE", "/v1/tokens/{token}"): of("spare_token", "/v1/tokens/{}"),
    ("POST", "/v1/experiments"): at("/v1/experiments", outside=REFUSED, body=lambda p: p.request),
    ("GET", "/v1/experiments"): at("/v1/experiments", outside=LIST),
    ("GET", "/v1/experiments/{experiment}"): of("experiment", "/v1/experiments/{}"),
    ("POST", "/v1/experiments/{experiment}/stop"): of("experiment", "/v1/experiments/{}/stop"),
    ("GET", "/v1/experiments/{experiment}/rounds"): of("experiment", "/v1/experiments/{}/rounds"),
    ("GET", "/v1/experiments/{experiment}/models"): of("experiment", "/v1/experiments/{}/models"),
    ("GET", "/v1/models/{sha256}"): of("model", "/v1/models/{}"),
    ("GET", "/v1/devices"): at("/v1/devices", outside=LIST),
    ("POST", "/v1/devices/{device}/revoke"): of("target", "/v1/devices/{}/revoke"),
    ("GET", "/v1/events"): at("/v1/events?live=false", outside=LIST),
    ("GET", "/v1/audit"): at("/v1/audit"),
    ("POST", "/v1/sessions"): at("/v1/sessions", body=lambda _: JOINT),
    ("GET", "/v1/sessions"): at("/v1/sessions"),
    ("GET", "/v1/sessions/{session}"): of("session", "/v1/sessions/{}"),
    ("POST", "/v1/sessions/{session}/end"): of("session", "/v1/sessions/{}/end"),
    ("GET", "/v1/device/population"): at("/v1/device/population"),
    ("POST", "/v1/device/enrol"): at("/v1/device/enrol", body=lambda p: p.newcomer),
    ("POST", "/v1/device/check-in"): at("/v1/device/check-in"),
    ("POST", "/v1/device/withdraw"): at("/v1/device/withdraw"),
    ("GET", "/v1/device/experiments/{experiment}/lineage"): of("experiment", "/v1/device/experiments/{}/lineage"),
    ("HEAD", "/v1/device/tasks/{task}/update"): at(f"{TASK}/update"),
    ("PATCH", "/v1/device/tasks/{task}/update"): at(f"{TASK}/update", headers=lambda _: OFFSETS, body=lambda _: b"{}"),
    ("POST", "/v1/device/tasks/{task}/progress"): at(f"{TASK}/progress"),
    ("POST", "/v1/device/tasks/{task}/abort"): at(f"{TASK}/abort"),
    ("POST", "/v1/device/tasks/{task}/secure/keys"): at(f"{TASK}/secure/keys"),
    ("POST", "/v1/device/tasks/{task}/secure/shares"): at(f"{TASK}/secure/shares"),
    ("POST", "/v1/device/tasks/{task}/secure/agreement"): at(f"{TASK}/secure/agreement"),
    ("POST", "/v1/device/tasks/{task}/secure/reveal"): at(f"{TASK}/secure/reveal"),
    ("GET", "/v1/device/tasks/{task}/secure/{awaited}"): at(f"{TASK}/secure/roster"),
    ("POST", "/v1/party/join"): at("/v1/party/join", body=lambda _: {"public_key": PUBLIC_KEY}),
    ("GET", "/v1/party/session"): at("/v1/party/session"),
    ("POST", "/v1/party/end"): at("/v1/party/end"),
    ("HEAD", "/v1/party/messages/{stage}/{role}/{sequence}"): at(f"{MESSAGES}/0"),
    ("PATCH", "/v1/party/messages/{stage}/{role}/{sequence}"): at(
        f"{MESSAGES}/0", headers=lambda _: OFFSETS, body=lambda _: b"{}"
    ),
    ("GET", "/v1/party/messages/{stage}/{role}"): at(MESSAGES),
    ("POST", "/v1/party/messages/{stage}/{role}/{sequence}/acknowledge"): at(f"{MESSAGES}/0/acknowledge"),
}
STATES: Final = ("valid", "expired", "revoked")
ROLES: Final[tuple[TokenRole, ...]] = get_args(TokenRole)
HOLDERS: Final = {
    "strangers": (Holder("nobody"), Holder("garbage"), Holder("wrong secret")),
    "roles for all populations": tuple(Holder(role) for role in ROLES),
    "roles for the population": tuple(Holder(role, "people") for role in ROLES if role != "admin"),
    "roles for another population": tuple(Holder(role, "others") for role in ROLES if role != "admin"),
    "roles that are over": tuple(Holder(role, state=state) for role in ROLES for state in ("expired", "revoked")),
    "newcomers": tuple(Holder(kind, "people", state) for kind in ("enrol", "edge") for state in STATES),
    "devices": (
        Holder("device", "people"),
        Holder("device", "others"),
        Holder("edge aggregator", "people"),
        Holder("device", "people", "revoked"),
        Holder("device", "people", "another's signature"),
    ),
    "parties": (
        *(Holder("party's token", state=state) for state in STATES),
        Holder("party"),
        Holder("party", state="another's signature"),
    ),
}
STANDS_FOR: Final = {
    "enrol": "newcomer",
    "edge": "newcomer",
    "device": "device",
    "edge aggregator": "device",
    "party's token": "invited",
}
"""As which role of the table a holder comes; a token of a role as that role."""
SIGNERS: Final = ("device", "party")


def routes() -> list[Route]:
    """Every route of the application: those of its routers, and there is nothing beside them."""
    found = create_app().routes
    assert found == [route for router in ROUTERS for route in router.routes]
    assert all(isinstance(route, GatedRoute) for route in found)
    return [
        (method, route.path)
        for route in found
        if isinstance(route, GatedRoute)
        for method in sorted(route.methods or ())
    ]


def expected(route: Route, rule: RouteRule, holder: Holder) -> tuple[int | None, str]:
    """Status and code of a route's answer to a holder; None: what the handler answers to callers that are let in."""
    role = STANDS_FOR.get(holder.kind, holder.kind)
    if rule.credential is None:
        return None, ""
    if role not in CREDENTIALS or (role in SIGNERS) != (rule.credential is Credential.SIGNATURE):
        return 401, "unauthenticated"
    if holder.state == "expired":
        return 401, "token_expired"
    if holder.state == "revoked":
        return (403, "device_revoked") if role == "device" else (401, "unauthenticated")
    if holder.state == "another's signature":
        return 401, "signature_invalid"
    if role not in rule.roles:
        return 403, "token_role"
    if role in ROLES and holder.population is not None and rule.scope is Scope.ALL:
        return 403, "token_scope"
    if role in ROLES and holder.population == "others":
        if rule.scope is Scope.NAMED:
            return 403, "token_scope"
        return REQUESTS[route].outside, ""
    return None, ""


def test_the_table_names_exactly_the_routes_there_are_and_so_do_these_requests() -> None:
    assert sorted(routes()) == sorted(POLICY) == sorted(REQUESTS)


def test_a_route_without_a_row_cannot_be_made() -> None:
    router: APIRouter = gated_router("more")
    with pytest.raises(InternalError, match="policy table"):

        @router.get("/v1/secrets")
        async def secrets() -> None: ...


def test_every_role_of_the_table_has_a_credential_and_a_route() -> None:
    assert {role for rule in POLICY.values() for role in rule.roles} == set(CREDENTIALS)
    assert all((rule.credential is None) == (not rule.roles) for rule in POLICY.values())
    named = {route for route, rule in POLICY.items() if rule.scope is Scope.NAMED}
    assert named == {route for route in POLICY if "{name}" in route[1]}


def test_roles_without_a_credential_in_common_are_no_row() -> None:
    with pytest.raises(InternalError, match="no credential in common"):
        _ = RouteRule(roles=frozenset({"admin", "device"})).credential


@pytest.mark.parametrize("group", HOLDERS)
def test_a_route_answers_each_role_and_scope_as_its_row_says(group: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            place = await open_place(operator)
            for holder in HOLDERS[group]:
                await _ask_everything(place, holder)

    asyncio.run(work())


async def _ask_everything(place: Place, holder: Holder) -> None:
    credential = await place.credential(holder)
    # Leaving the population, or ending the session, comes last: nothing is let through after it.
    for route in sorted(POLICY, key=lambda each: (each[1].endswith("withdraw"), each[1].endswith("/end"))):
        rule, asked = POLICY[route], REQUESTS[route]
        answer = await credential.send(route[0], asked.path(place), asked.body(place), asked.headers(place))
        told = (holder, route, answer.status_code, answer.headers.get("Coterie-Problem", ""))
        status, code = expected(route, rule, holder)
        assert answer.status_code < 500, told
        if status is None:
            assert answer.status_code not in (401, 403), told
        else:
            assert answer.status_code == status and (not code or told[3] == code), told
        if holder.population == "others" and answer.is_success and rule.credential is Credential.ROLE_TOKEN:
            place.assert_tells_nothing_of_people(route, answer)


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


def test_the_description_names_the_roles_of_every_operation() -> None:
    paths = create_app().openapi()["paths"]
    for (method, path), rule in POLICY.items():
        security = paths[path][method.lower()]["security"]
        assert security == ([] if rule.credential is None else [{rule.credential.value: sorted(rule.roles)}]), path


def test_the_page_about_roles_says_what_the_table_says() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "roles.md").read_text(encoding="utf-8")
    shown: dict[Route, tuple[frozenset[str], str]] = {}
    for line in page.splitlines():
        if re.match(r"\| `[A-Z]+ /", line) is None:
            continue
        route, _, *marks, scope = [cell.strip() for cell in line.strip("|").split("|")]
        method, path = route.strip("`").split(" ")
        shown[(method, path)] = (frozenset(r for r, mark in zip(ROLES, marks, strict=True) if mark == "yes"), scope)
    words = {Scope.ALL: "refused", Scope.NAMED: "its own", Scope.ROWS: "its own"}
    assert shown == {
        route: (frozenset[str](rule.roles), words[rule.scope])
        for route, rule in POLICY.items()
        if rule.credential is Credential.ROLE_TOKEN
    }
