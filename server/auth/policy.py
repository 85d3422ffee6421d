"""Who may call what: one row per route, with the roles that it takes and what a token for one population may do there.
A route without a row cannot be served, and everything without a matching credential is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from coterie.errors import InternalError
from coterie.protocol.control import TokenRole

Principal = Literal[TokenRole, "newcomer", "device", "invited", "party"]
"""Whoever calls: a role of the control plane; a newcomer that wants to join a population, or a device (or edge
aggregator) that has; who is invited to a role of a session, or a party that has taken one.
"""


class Credential(Enum):
    """What a caller proves its role with."""

    ROLE_TOKEN = "role"
    ENROLMENT_TOKEN = "enrol"
    SIGNATURE = "device"


CREDENTIALS: Final[Mapping[Principal, Credential]] = {
    "admin": Credential.ROLE_TOKEN,
    "operator": Credential.ROLE_TOKEN,
    "researcher": Credential.ROLE_TOKEN,
    "auditor": Credential.ROLE_TOKEN,
    "newcomer": Credential.ENROLMENT_TOKEN,
    "device": Credential.SIGNATURE,
    "invited": Credential.ENROLMENT_TOKEN,
    "party": Credential.SIGNATURE,
}


class Scope(Enum):
    """What a caller of one population may do on a route; a token for all populations may do everything there.

    ALL: nothing. NAMED: what concerns the population that the path names (``{name}``). ROWS: the handler shows and
    changes only what is of the caller's population.
    """

    ALL = "all populations"
    NAMED = "the named population"
    ROWS = "rows of its population"


@dataclass(frozen=True, kw_only=True)
class RouteRule:
    """What a route asks for.

    roles: whom it takes; nobody named: everybody.
    streamed: the signature covers a body that the handler checks while it comes in.
    """

    roles: frozenset[Principal] = frozenset()
    scope: Scope = Scope.ALL
    streamed: bool = False

    @property
    def credential(self) -> Credential | None:
        """What callers prove their role with; None where nothing is asked. Raises InternalError for a row whose roles
        differ in it.
        """
        kinds = {CREDENTIALS[role] for role in self.roles}
        if len(kinds) > 1:
            raise InternalError(f"The roles {', '.join(sorted(self.roles))} have no credential in common.")
        return kinds.pop() if kinds else None


def _to(*roles: Principal, scope: Scope = Scope.ROWS, streamed: bool = False) -> RouteRule:
    return RouteRule(roles=frozenset(roles), scope=scope, streamed=streamed)


PUBLIC: Final = RouteRule()

POLICY: Final[Mapping[tuple[str, str], RouteRule]] = {
    ("GET", "/"): PUBLIC,
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/metrics"): PUBLIC,
    ("GET", "/docs"): PUBLIC,
    ("GET", "/v1/openapi.json"): PUBLIC,
    ("GET", "/v1/blobs/{sha256}"): PUBLIC,
    ("HEAD", "/v1/blobs/{sha256}"): PUBLIC,
    ("PUT", "/v1/blobs/{sha256}"): _to("admin", "researcher"),
    ("POST", "/v1/populations"): _to("admin", "operator", scope=Scope.ALL),
    ("GET", "/v1/populations"): _to("admin", "operator", "researcher", "auditor"),
    ("GET", "/v1/populations/{name}"): _to("admin", "operator", "researcher", "auditor", scope=Scope.NAMED),
    ("PATCH", "/v1/populations/{name}"): _to("admin", "operator", scope=Scope.NAMED),
    ("GET", "/v1/populations/{name}/budget"): _to("admin", "operator", "researcher", "auditor", scope=Scope.NAMED),
    ("GET", "/v1/populations/{name}/budget/entries"): _to(
        "admin", "operator", "researcher", "auditor", scope=Scope.NAMED
    ),
    ("PUT", "/v1/populations/{name}/signers/{public}"): _to("admin", "operator", scope=Scope.NAMED),
    ("POST", "/v1/tokens"): _to("admin", "operator"),
    ("GET", "/v1/tokens"): _to("admin", "operator"),
    ("DELETE", "/v1/tokens/{token}"): _to("admin", "operator"),
    ("POST", "/v1/experiments"): _to("admin", "researcher"),
    ("GET", "/v1/experiments"): _to("admin", "operator", "researcher", "auditor"),
    ("GET", "/v1/experiments/{experiment}"): _to("admin", "operator", "researcher", "auditor"),
    ("POST", "/v1/experiments/{experiment}/stop"): _to("admin", "operator", "researcher"),
    ("GET", "/v1/experiments/{experiment}/rounds"): _to("admin", "operator", "researcher", "auditor"),
    ("GET", "/v1/experiments/{experiment}/models"): _to("admin", "operator", "researcher", "auditor"),
    ("GET", "/v1/models/{sha256}"): _to("admin", "operator", "researcher", "auditor"),
    ("GET", "/v1/devices"): _to("admin", "operator", "auditor"),
    ("POST", "/v1/devices/{device}/revoke"): _to("admin", "operator"),
    ("GET", "/v1/events"): _to("admin", "operator", "researcher", "auditor"),
    ("GET", "/v1/audit"): _to("admin", "auditor", scope=Scope.ALL),
    ("POST", "/v1/sessions"): _to("admin", "operator", scope=Scope.ALL),
    ("GET", "/v1/sessions"): _to("admin", "operator", "auditor", scope=Scope.ALL),
    ("GET", "/v1/sessions/{session}"): _to("admin", "operator", "auditor", scope=Scope.ALL),
    ("POST", "/v1/sessions/{session}/end"): _to("admin", "operator", scope=Scope.ALL),
    ("GET", "/v1/device/population"): _to("newcomer"),
    ("POST", "/v1/device/enrol"): _to("newcomer"),
    ("POST", "/v1/device/check-in"): _to("device"),
    ("POST", "/v1/device/withdraw"): _to("device"),
    ("GET", "/v1/device/experiments/{experiment}/lineage"): _to("device"),
    ("HEAD", "/v1/device/tasks/{task}/update"): _to("device"),
    ("PATCH", "/v1/device/tasks/{task}/update"): _to("device", streamed=True),
    ("POST", "/v1/device/tasks/{task}/progress"): _to("device"),
    ("POST", "/v1/device/tasks/{task}/abort"): _to("device"),
    ("POST", "/v1/device/tasks/{task}/secure/keys"): _to("device"),
    ("POST", "/v1/device/tasks/{task}/secure/shares"): _to("device"),
    ("POST", "/v1/device/tasks/{task}/secure/agreement"): _to("device"),
    ("POST", "/v1/device/tasks/{task}/secure/reveal"): _to("device"),
    ("GET", "/v1/device/tasks/{task}/secure/{awaited}"): _to("device"),
    ("POST", "/v1/party/join"): _to("invited"),
    ("GET", "/v1/party/session"): _to("party"),
    ("POST", "/v1/party/end"): _to("party"),
    ("HEAD", "/v1/party/messages/{stage}/{role}/{sequence}"): _to("party"),
    ("PATCH", "/v1/party/messages/{stage}/{role}/{sequence}"): _to("party", streamed=True),
    ("GET", "/v1/party/messages/{stage}/{role}"): _to("party"),
    ("POST", "/v1/party/messages/{stage}/{role}/{sequence}/acknowledge"): _to("party"),
}
