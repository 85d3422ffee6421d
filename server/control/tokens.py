"""Tokens: of a role for people and scripts, of enrolment for devices and edge aggregators that want to join."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args

from fastapi import Path, Response

from coterie.errors import Conflict, Forbidden, InputError, NotFound
from coterie.protocol.control import AnyTokenKind, Page, TokenCreate, TokenCreated, TokenKind, TokenRole, TokenView
from coterie.server.auth.caller import Caller
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.clock import now_ms
from coterie.server.control.idempotency import OnceOnly
from coterie.server.control.populations import find_population
from coterie.server.credentials.tokens import new_token
from coterie.server.paging import PageCursor, PageLimit, after, instant, maybe_instant, page
from coterie.server.store import audit, tokens
from coterie.server.store.tables import TokenRow

router = gated_router("tokens")
JOINING: Final[tuple[TokenKind, ...]] = ("enrol", "edge")
"""The kinds of tokens that let devices and edge aggregators join."""
MAKES: Final[Mapping[TokenRole, frozenset[AnyTokenKind]]] = {
    "admin": frozenset(get_args(AnyTokenKind)),
    "operator": frozenset((*JOINING, "party")),
    "researcher": frozenset(),
    "auditor": frozenset(),
}
"""The kinds of tokens that a role makes and revokes: never one that may do more than its own. Those of the kind party
come with a session.
"""
FEWEST_CLIENTS = 2
"""An accumulator of one client is that client's update."""


def _fields(row: TokenRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "name": row.label,
        "population": row.population,
        "uses_left": None if row.max_uses is None else max(row.max_uses - row.uses, 0),
        "min_clients": row.min_clients,
        "max_clients": row.max_clients,
        "created_at": instant(row.created_at),
        "expires_at": maybe_instant(row.expires_at),
        "revoked": row.revoked_at is not None,
    }


def _allow(caller: Caller, kind: str) -> None:
    """Return only if the caller may make and revoke tokens of this kind. Raises Forbidden (``token_role``)."""
    if kind not in MAKES[caller.role]:
        raise Forbidden(
            f"A token of the role {caller.role} makes and revokes tokens of the kinds {' and '.join(JOINING)} only, "
            f"not {kind}.",
            hint="Ask an administrator.",
            code="token_role",
        )


def _check(body: TokenCreate) -> None:
    if body.kind in JOINING and body.population is None:
        raise InputError(
            f"A token of the kind {body.kind} needs a population.", hint="Give population.", code="token_population"
        )
    if body.kind == "admin" and body.population is not None:
        raise InputError(
            "A token of the role admin is for all populations.",
            hint="Leave population out, or make one of the role operator, researcher or auditor.",
            code="token_population",
        )
    if body.kind not in JOINING and body.uses is not None:
        raise InputError(
            f"Only tokens of the kinds {' and '.join(JOINING)} can limit uses.",
            hint="Leave uses out.",
            code="token_uses",
        )
    if (body.kind == "edge") != (body.max_clients is not None) or (body.kind != "edge" and body.min_clients):
        raise InputError(
            "A token of the kind edge says for how many clients an edge aggregator may speak, and no other token does.",
            hint="Give max_clients (and, where it shall not be 2, min_clients).",
            code="token_clients",
        )
    if body.max_clients is not None and body.max_clients < _fewest(body):
        raise InputError(
            f"max_clients {body.max_clients} is below min_clients {_fewest(body)}, so no update could pass.",
            hint="Raise max_clients, or give a lower min_clients.",
            code="token_clients",
        )


def _fewest(body: TokenCreate) -> int:
    return body.min_clients or FEWEST_CLIENTS


@router.post("/v1/tokens", operation_id="createToken", status_code=201, summary="Make a token")
async def create(
    body: TokenCreate, response: Response, coordinator: OpenCoordinator, caller: Calling, once: OnceOnly
) -> TokenCreated:
    """The only answer that holds the secret. The same Idempotency-Key again gives the same token a new secret; the
    former stops working. An operator makes tokens to enrol with, and no others.
    """
    kind = body.kind
    _allow(caller, kind)
    _check(body)
    caller.check(body.population)
    async with coordinator.storage.database.write("token") as session:
        await caller.confirm(session)
        earlier = await once.earlier(session, response)
        if earlier is not None:
            token = new_token(kind, earlier)
            await tokens.replace_secret(session, token)
            await audit.append(session, caller.token, "token.secret_replaced", token.id)
            row = await tokens.find(session, token.id)
            if row is None:
                raise NotFound(f"The token {token.id} is gone.")
            return TokenCreated.model_validate({**_fields(row), "token": token.text})
        if body.population is not None:
            await find_population(session, body.population)
        token = new_token(kind)
        expires = None if body.expires_s is None else now_ms() + body.expires_s * 1000
        row = tokens.add(
            session,
            token,
            label=body.name,
            population=body.population,
            max_uses=body.uses,
            expires_at=expires,
            min_clients=_fewest(body) if kind == "edge" else None,
            max_clients=body.max_clients,
        )
        await session.flush()
        detail = {"kind": kind, "population": body.population}
        bounds = {"min_clients": row.min_clients, "max_clients": row.max_clients} if kind == "edge" else {}
        await audit.append(session, caller.token, "token.created", token.id, {**detail, **bounds})
        once.remember(session, token.id)
        return TokenCreated.model_validate({**_fields(row), "token": token.text})


@router.get("/v1/tokens", operation_id="listTokens", summary="List tokens, without their secrets")
async def index(
    coordinator: OpenCoordinator, caller: Calling, limit: PageLimit = 100, cursor: PageCursor = None
) -> Page[TokenView]:
    """The oldest first; with a token for one population, those for that population."""
    async with coordinator.storage.database.read() as session:
        rows = await tokens.page(session, caller.population, after(cursor) or "", limit + 1)
    return page(rows, limit, lambda row: row.id, [TokenView.model_validate(_fields(row)) for row in rows])


@router.delete("/v1/tokens/{token}", operation_id="revokeToken", status_code=204, summary="Revoke a token")
async def revoke(token: Annotated[str, Path(max_length=64)], coordinator: OpenCoordinator, caller: Calling) -> None:
    """Idempotent. Streams of events that were opened with it end; devices that enrolled with it stay enrolled."""
    async with coordinator.storage.database.write("token") as session:
        await caller.confirm(session)
        row = await tokens.find(session, token)
        if row is None or not caller.reaches(row.population):
            raise NotFound(f"There is no token {token!r}.", code="token_unknown")
        if row.id == caller.token:
            raise Conflict(
                "A token cannot revoke itself.",
                hint="Revoke it with an administrator's other token.",
                code="token_in_use",
            )
        _allow(caller, row.kind)
        if row.revoked_at is None:
            await tokens.revoke(session, token)
            await audit.append(session, caller.token, "token.revoked", token)
