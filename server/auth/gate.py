"""The gate: every request passes here once, and leaves with the one principal that its route asks for."""

from abc import ABC
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast, final, get_args

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute

from coterie.errors import Forbidden, InternalError, Unauthenticated
from coterie.protocol import ids
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.control import TokenRole
from coterie.protocol.http_signatures import RequestSignature, check_content_digest, parse_signature
from coterie.protocol.session import SessionTerms
from coterie.server.auth.caller import Caller
from coterie.server.auth.policy import POLICY, Credential, Principal, RouteRule, Scope
from coterie.server.auth.signatures import signed_fields, verify_head
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.credentials.tokens import Token, matches, parse_token
from coterie.server.store import tokens
from coterie.server.store.devices import ClientBounds, client_bounds
from coterie.server.store.tables import TokenRow

JOINS: Final[Mapping[str, Principal]] = {"enrol": "newcomer", "edge": "newcomer", "party": "invited"}
"""As whom the holder of a token of this kind comes."""


@dataclass(frozen=True)
class Enroller:
    """The holder of an enrolment token.

    clients: for how many an edge aggregator may speak; None for a device.
    """

    token: str
    population: str
    clients: ClientBounds | None


@dataclass(frozen=True)
class Invited:
    """The holder of a token with which a party takes a role of a session."""

    token: str


@dataclass(frozen=True, kw_only=True)
class SignedRequest(ABC):
    """Who signed the head of this request.

    public: their key.
    content_digest: what its body must have.
    """

    id: str
    public: str
    nonce: str
    nonce_expires: int
    content_digest: str

    def check_body(self, sha256: str) -> None:
        """Return only if a body of this SHA-256 is what was signed. Raises errors.RequestRefused."""
        check_content_digest(self.content_digest, sha256)


@final
@dataclass(frozen=True, kw_only=True)
class SignedDevice(SignedRequest):
    """A device.

    clients: for how many an edge aggregator may speak; None for a device.
    """

    population: str
    clients: ClientBounds | None = None


@final
@dataclass(frozen=True, kw_only=True)
class SignedParty(SignedRequest):
    """A party of a session, in its role."""

    session: str
    role: str
    terms: SessionTerms


def coordinator_of(request: Request) -> Coordinator:
    """The coordinator that this application serves."""
    return request.app.state.coordinator


def rule_of(method: str, path: str) -> RouteRule:
    """What the policy table asks of a route. Raises InternalError for a route without a row."""
    rule = POLICY.get((method, path))
    if rule is None:
        raise InternalError(f"The route {method} {path} has no row in the policy table.")
    return rule


def _bearer(request: Request) -> Token:
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("This route needs a bearer token.", hint="Send Authorization: Bearer coterie_…")
    return parse_token(text.strip())


async def _valid_token(coordinator: Coordinator, token: Token) -> TokenRow:
    async with coordinator.storage.database.read() as session:
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


async def _caller(request: Request, rule: RouteRule) -> Caller:
    row = await _valid_token(coordinator_of(request), _bearer(request))
    if row.kind not in rule.roles:
        wanted = " or ".join(role for role in get_args(TokenRole) if role in rule.roles)
        raise Forbidden(
            f"This needs a token of the role {wanted}; this one is of the kind {row.kind}.",
            hint="Ask an administrator for one: coterie tokens make --role ROLE. The coordinator keeps the first "
            "administrator's in admin.token of its folder (--token, COTERIE_TOKEN).",
            code="token_role",
        )
    caller = Caller(token=row.id, role=cast(TokenRole, row.kind), population=row.population, expires_at=row.expires_at)
    if rule.scope is not Scope.ROWS:
        caller.check(request.path_params["name"] if rule.scope is Scope.NAMED else None)
    return caller


async def _newcomer(request: Request, rule: RouteRule) -> Enroller | Invited:
    row = await _valid_token(coordinator_of(request), _bearer(request))
    wanted, who = ("party", "a party joins") if "invited" in rule.roles else ("enrol, edge", "devices join")
    if JOINS.get(row.kind) not in rule.roles:
        raise Forbidden(
            f"This needs a token with which {who} ({wanted}); this one is of the kind {row.kind}.",
            hint="Ask an operator for one: coterie tokens make --population NAME, or coterie sessions make.",
            code="token_role",
        )
    if row.population is None:
        return Invited(row.id)
    return Enroller(row.id, row.population, client_bounds(row))


async def _signer(request: Request, rule: RouteRule) -> SignedRequest:
    """The device or party that signed this request: nothing of its body is read before that is proven. A streamed body
    is the route's to check.
    """
    fields = signed_fields(request)
    signature = parse_signature(fields)
    prove = _party if signature.device.startswith(f"{ids.PARTY}_") else _device
    signed = await prove(request, fields, signature)
    role: Principal = "party" if isinstance(signed, SignedParty) else "device"
    if role not in rule.roles:
        raise Forbidden(
            f"This needs a request signed by a {' or '.join(sorted(rule.roles))}; this one is signed by a {role}.",
            hint="Devices use the routes under /v1/device, parties of sessions those under /v1/party.",
            code="token_role",
        )
    if not rule.streamed:
        signed.check_body(sha256_hex(await request.body()))
    return signed


async def _device(request: Request, fields: Mapping[str, str], signature: RequestSignature) -> SignedDevice:
    coordinator = coordinator_of(request)
    device = await coordinator.presence.devices.find(signature.device)
    if device is None:
        raise Unauthenticated("No device of this id is enrolled here.", hint="Enrol again.", code="device_unknown")
    expires = _proven(request, fields, signature, device.public)
    if device.revoked:
        raise Forbidden("This device was revoked.", hint="Ask the operator.", code="device_revoked")
    # Rounds choose among devices: an edge aggregator answers for others, and nothing is kept for it.
    coordinator.presence.fleet.saw(device.id, now_ms(), "" if device.clients else device.population)
    return SignedDevice(
        id=device.id,
        population=device.population,
        public=device.public,
        nonce=signature.nonce,
        nonce_expires=expires,
        content_digest=fields["content-digest"],
        clients=device.clients,
    )


async def _party(request: Request, fields: Mapping[str, str], signature: RequestSignature) -> SignedParty:
    coordinator = coordinator_of(request)
    known = await coordinator.presence.parties.find(signature.device)
    if known is None:
        raise Unauthenticated(
            "No party of this id has joined a session here.",
            hint="Join again with the token of the role.",
            code="party_unknown",
        )
    expires = _proven(request, fields, signature, known.public)
    coordinator.presence.guests.saw(signature.device, now_ms())
    return SignedParty(
        id=signature.device,
        public=known.public,
        nonce=signature.nonce,
        nonce_expires=expires,
        content_digest=fields["content-digest"],
        session=known.session,
        role=known.role,
        terms=known.terms,
    )


def _proven(request: Request, fields: Mapping[str, str], signature: RequestSignature, public: str) -> int:
    """When the nonce of a request expires that this key signed, here and now, once."""
    coordinator = coordinator_of(request)
    fresh = coordinator.identity.nonces.issue(signature.device)
    request.scope["coterie.headers"] = ((b"coterie-nonce", fresh.encode()),)
    expires = coordinator.identity.nonces.check(signature.device, signature.nonce)
    verify_head(request, fields, signature, public, coordinator.settings.public_url)
    coordinator.identity.nonces.spend(signature.nonce, expires)
    return expires


async def gate(request: Request, rule: RouteRule) -> None:
    """Let a request through only with the credential asked for."""
    match rule.credential:
        case None:
            principal = None
        case Credential.ROLE_TOKEN:
            principal = await _caller(request, rule)
        case Credential.ENROLMENT_TOKEN:
            principal = await _newcomer(request, rule)
        case Credential.SIGNATURE:
            principal = await _signer(request, rule)
    request.state.principal = principal


class GatedRoute(APIRoute):
    """A route whose requests pass the gate before anything of them is parsed. It cannot be made without a row in the
    policy table.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler behind the gate."""
        serve = super().get_route_handler()
        rules = {method: rule_of(method, self.path) for method in self.methods or ()}

        async def handle(request: Request) -> Response:
            await gate(request, rules[request.method])
            return await serve(request)

        return handle


def gated_router(tag: str) -> APIRouter:
    """A router of gated routes."""
    return APIRouter(tags=[tag], route_class=GatedRoute)


def _principal(request: Request) -> object:
    return request.state.principal


def caller_of(request: Request) -> Caller:
    """The caller whom the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, Caller):
        raise Forbidden
    return principal


def enroller(request: Request) -> Enroller:
    """The enroller whom the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, Enroller):
        raise Forbidden
    return principal


def invited(request: Request) -> Invited:
    """The holder of a party's token whom the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, Invited):
        raise Forbidden
    return principal


def signed_device(request: Request) -> SignedDevice:
    """The device that the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, SignedDevice):
        raise Forbidden
    return principal


def signed_party(request: Request) -> SignedParty:
    """The party that the gate let through."""
    principal = _principal(request)
    if not isinstance(principal, SignedParty):
        raise Forbidden
    return principal


# Async although they wait for nothing: FastAPI would hand plain functions to a thread.


async def _coordinator(request: Request) -> Coordinator:
    return coordinator_of(request)


async def _calling(request: Request) -> Caller:
    return caller_of(request)


async def _enrolling(request: Request) -> Enroller:
    return enroller(request)


async def _signed(request: Request) -> SignedDevice:
    return signed_device(request)


async def _joining_party(request: Request) -> Invited:
    return invited(request)


async def _signed_party(request: Request) -> SignedParty:
    return signed_party(request)


Calling = Annotated[Caller, Depends(_calling)]
Enrolling = Annotated[Enroller, Depends(_enrolling)]
SigningDevice = Annotated[SignedDevice, Depends(_signed)]
Joining = Annotated[Invited, Depends(_joining_party)]
PartySender = Annotated[SignedParty, Depends(_signed_party)]
OpenCoordinator = Annotated[Coordinator, Depends(_coordinator)]
