"""The gate: every request passes here once, and leaves with the one principal that its route asks for."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute

from coterie.errors import Forbidden, InternalError, Unauthenticated
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.http_signatures import check_content_digest, parse_signature
from coterie.server.auth.policy import POLICY, Access
from coterie.server.auth.signatures import signed_fields, verify_head
from coterie.server.auth.tokens import Token, matches, parse_token
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.store import tokens
from coterie.server.store.devices import ClientBounds, client_bounds
from coterie.server.store.tables import TokenRow


@dataclass(frozen=True)
class Administrator:
    """The holder of an admin token."""

    token: str


@dataclass(frozen=True)
class Enroller:
    """The holder of an enrolment token. clients: for how many an edge aggregator may speak; None for a device."""

    token: str
    population: str
    clients: ClientBounds | None


@dataclass(frozen=True, kw_only=True)
class SignedDevice:
    """A device that signed the head of this request. public: its key. content_digest: what its body must have. clients:
    for how many an edge aggregator may speak; None for a device.
    """

    id: str
    population: str
    public: str
    nonce: str
    nonce_expires: int
    content_digest: str
    clients: ClientBounds | None = None

    def check_body(self, sha256: str) -> None:
        """Return only if a body of this SHA-256 is what the device signed. Raises errors.RequestRefused."""
        check_content_digest(self.content_digest, sha256)


def coordinator_of(request: Request) -> Coordinator:
    """The coordinator that this application serves."""
    return request.app.state.coordinator


def access_of(method: str, path: str) -> Access:
    """What the policy table asks of a route. Raises InternalError for a route without a row."""
    access = POLICY.get((method, path))
    if access is None:
        raise InternalError(f"The route {method} {path} has no row in the policy table.")
    return access


def _bearer(request: Request) -> Token:
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("This route needs a bearer token.", hint="Send Authorization: Bearer coterie_…")
    return parse_token(text.strip())


async def _known(coordinator: Coordinator, token: Token) -> TokenRow:
    async with coordinator.database.read() as session:
        row = await tokens.find(session, token.id)
    # Compare even for an unknown id, so that the answer's time does not tell which ids exist.
    if (
        not matches(token, row.digest if row else "0" * 64)
        or row is None
        or row.kind != token.kind
        or row.revoked_at is not None
    ):
        raise Unauthenticated(
            "The bearer token is not valid here, or was revoked.", hint="Ask the operator for a new one."
        )
    if row.expires_at is not None and row.expires_at <= now_ms():
        raise Unauthenticated("The token has expired.", hint="Ask the operator for a new one.", code="token_expired")
    return row


async def _administrator(request: Request) -> Administrator:
    row = await _known(coordinator_of(request), _bearer(request))
    if row.kind != "admin":
        raise Forbidden("This route needs an admin token; this one only enrols devices.")
    return Administrator(row.id)


async def _enroller(request: Request) -> Enroller:
    row = await _known(coordinator_of(request), _bearer(request))
    if row.kind not in ("enrol", "edge") or row.population is None:
        raise Forbidden("This route needs an enrolment token of a population.", hint="Make one: POST /v1/tokens.")
    return Enroller(row.id, row.population, client_bounds(row))


async def _device(request: Request, *, streamed: bool) -> SignedDevice:
    """The device that signed this request: nothing of its body is read before that is proven. A streamed body is the
    route's to check.
    """
    coordinator = coordinator_of(request)
    fields = signed_fields(request)
    signature = parse_signature(fields)
    device = await coordinator.devices.find(signature.device)
    if device is None:
        raise Unauthenticated("No device of this id is enrolled here.", hint="Enrol again.", code="device_unknown")
    fresh = coordinator.nonces.issue(device.id)
    request.scope["coterie.headers"] = ((b"coterie-nonce", fresh.encode()),)
    expires = coordinator.nonces.check(device.id, signature.nonce)
    verify_head(request, fields, signature, device.public, coordinator.settings.public_url)
    coordinator.nonces.spend(signature.nonce, expires)
    if device.revoked:
        raise Forbidden("This device was revoked.", hint="Ask the operator.", code="device_revoked")
    # Rounds choose among devices: an edge aggregator answers for others, and nothing is kept for it.
    coordinator.fleet.saw(device.id, now_ms(), "" if device.clients else device.population)
    signed = SignedDevice(
        id=device.id,
        population=device.population,
        public=device.public,
        nonce=signature.nonce,
        nonce_expires=expires,
        content_digest=fields["content-digest"],
        clients=device.clients,
    )
    if not streamed:
        signed.check_body(sha256_hex(await request.body()))
    return signed


async def gate(request: Request, access: Access) -> None:
    """Let a request through only with the credential asked for."""
    match access:
        case Access.PUBLIC:
            principal = None
        case Access.ADMIN:
            principal = await _administrator(request)
        case Access.ENROL:
            principal = await _enroller(request)
        case Access.DEVICE:
            principal = await _device(request, streamed=False)
        case Access.DEVICE_STREAM:
            principal = await _device(request, streamed=True)
    request.state.principal = principal


class GatedRoute(APIRoute):
    """A route whose requests pass the gate before anything of them is parsed. It cannot be made without a row in the
    policy table.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler behind the gate."""
        serve = super().get_route_handler()
        rows = {method: access_of(method, self.path) for method in self.methods or ()}

        async def handle(request: Request) -> Response:
            await gate(request, rows[request.method])
            return await serve(request)

        return handle


def gated_router(tag: str) -> APIRouter:
    """A router of gated routes."""
    return APIRouter(tags=[tag], route_class=GatedRoute)


def _principal(request: Request) -> object:
    return request.state.principal


def administrator(request: Request) -> Administrator:
    """The administrator whom the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, Administrator):
        raise Forbidden
    return principal


def enroller(request: Request) -> Enroller:
    """The enroller whom the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, Enroller):
        raise Forbidden
    return principal


def signed_device(request: Request) -> SignedDevice:
    """The device that the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, SignedDevice):
        raise Forbidden
    return principal


# Async although they wait for nothing: FastAPI would hand plain functions to a thread.


async def _here(request: Request) -> Coordinator:
    return coordinator_of(request)


async def _admin(request: Request) -> Administrator:
    return administrator(request)


async def _enrolling(request: Request) -> Enroller:
    return enroller(request)


async def _signed(request: Request) -> SignedDevice:
    return signed_device(request)


Admin = Annotated[Administrator, Depends(_admin)]
Enrolling = Annotated[Enroller, Depends(_enrolling)]
Signed = Annotated[SignedDevice, Depends(_signed)]
Here = Annotated[Coordinator, Depends(_here)]
