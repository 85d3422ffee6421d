"""Who may call what: one row per route, role and scope. A route without a row cannot be served, and everything without
a matching credential is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coterie.protocol.control import Role


class Access(Enum):
    """The one kind of credential that a route takes."""

    PUBLIC = "none"
    ROLE = "token of a role"
    ENROL = "enrolment token"
    DEVICE = "device signature"
    DEVICE_STREAM = "device signature over a streamed body"


class Scope(Enum):
    """What a token for one population may do on a route; one for all populations may do everything.

    ALL: nothing. NAMED: what concerns the population that the path names (``{name}``). ROWS: the handler shows and
    changes only what is of the token's population.
    """

    ALL = "all populations"
    NAMED = "the named population"
    ROWS = "rows of its population"


@dataclass(frozen=True)
class Rule:
    """What a route asks for. roles: whose tokens it takes; of other credentials there is one kind each."""

    access: Access
    roles: frozenset[Role] = frozenset()
    scope: Scope = Scope.ALL


def _roles(*roles: Role, scope: Scope) -> Rule:
    return Rule(Access.ROLE, frozenset(roles), scope)


def _readers(scope: Scope) -> Rule:
    return _roles("admin", "operator", "researcher", "auditor", scope=scope)


_PUBLIC: Final = Rule(Access.PUBLIC)
_ENROL: Final = Rule(Access.ENROL)
_DEVICE: Final = Rule(Access.DEVICE)

POLICY: Final[Mapping[tuple[str, str], Rule]] = {
    ("GET", "/"): _PUBLIC,
    ("GET", "/healthz"): _PUBLIC,
    ("GET", "/readyz"): _PUBLIC,
    ("GET", "/metrics"): _PUBLIC,
    ("GET", "/docs"): _PUBLIC,
    ("GET", "/v1/openapi.json"): _PUBLIC,
    ("GET", "/v1/blobs/{sha256}"): _PUBLIC,
    ("HEAD", "/v1/blobs/{sha256}"): _PUBLIC,
    ("PUT", "/v1/blobs/{sha256}"): _roles("admin", "researcher", scope=Scope.ROWS),
    ("POST", "/v1/populations"): _roles("admin", "operator", scope=Scope.ALL),
    ("GET", "/v1/populations"): _readers(Scope.ROWS),
    ("GET", "/v1/populations/{name}"): _readers(Scope.NAMED),
    ("PATCH", "/v1/populations/{name}"): _roles("admin", "operator", scope=Scope.NAMED),
    ("GET", "/v1/populations/{name}/budget"): _readers(Scope.NAMED),
    ("GET", "/v1/populations/{name}/budget/entries"): _readers(Scope.NAMED),
    ("PUT", "/v1/populations/{name}/signers/{public}"): _roles("admin", "operator", scope=Scope.NAMED),
    ("POST", "/v1/tokens"): _roles("admin", "operator", scope=Scope.ROWS),
    ("GET", "/v1/tokens"): _roles("admin", "operator", scope=Scope.ROWS),
    ("DELETE", "/v1/tokens/{token}"): _roles("admin", "operator", scope=Scope.ROWS),
    ("POST", "/v1/experiments"): _roles("admin", "researcher", scope=Scope.ROWS),
    ("GET", "/v1/experiments"): _readers(Scope.ROWS),
    ("GET", "/v1/experiments/{experiment}"): _readers(Scope.ROWS),
    ("POST", "/v1/experiments/{experiment}/stop"): _roles("admin", "operator", "researcher", scope=Scope.ROWS),
    ("GET", "/v1/experiments/{experiment}/rounds"): _readers(Scope.ROWS),
    ("GET", "/v1/experiments/{experiment}/models"): _readers(Scope.ROWS),
    ("GET", "/v1/models/{sha256}"): _readers(Scope.ROWS),
    ("GET", "/v1/devices"): _roles("admin", "operator", "auditor", scope=Scope.ROWS),
    ("POST", "/v1/devices/{device}/revoke"): _roles("admin", "operator", scope=Scope.ROWS),
    ("GET", "/v1/events"): _readers(Scope.ROWS),
    ("GET", "/v1/audit"): _roles("admin", "auditor", scope=Scope.ALL),
    ("GET", "/v1/device/population"): _ENROL,
    ("POST", "/v1/device/enrol"): _ENROL,
    ("POST", "/v1/device/check-in"): _DEVICE,
    ("POST", "/v1/device/withdraw"): _DEVICE,
    ("GET", "/v1/device/experiments/{experiment}/lineage"): _DEVICE,
    ("HEAD", "/v1/device/tasks/{task}/update"): _DEVICE,
    ("PATCH", "/v1/device/tasks/{task}/update"): Rule(Access.DEVICE_STREAM),
    ("POST", "/v1/device/tasks/{task}/progress"): _DEVICE,
    ("POST", "/v1/device/tasks/{task}/abort"): _DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/keys"): _DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/shares"): _DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/agreement"): _DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/reveal"): _DEVICE,
    ("GET", "/v1/device/tasks/{task}/secure/{awaited}"): _DEVICE,
}
