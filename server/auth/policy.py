"""Who may call what: one row per route. A route without a row cannot be served, and everything without a matching
credential is refused.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Access(Enum):
    """The one kind of credential that a route takes."""

    PUBLIC = "none"
    ADMIN = "admin token"
    ENROL = "enrolment token"
    DEVICE = "device signature"
    DEVICE_STREAM = "device signature over a streamed body"


POLICY: Final[Mapping[tuple[str, str], Access]] = {
    ("GET", "/"): Access.PUBLIC,
    ("GET", "/healthz"): Access.PUBLIC,
    ("GET", "/readyz"): Access.PUBLIC,
    ("GET", "/metrics"): Access.PUBLIC,
    ("GET", "/docs"): Access.PUBLIC,
    ("GET", "/v1/openapi.json"): Access.PUBLIC,
    ("GET", "/v1/blobs/{sha256}"): Access.PUBLIC,
    ("HEAD", "/v1/blobs/{sha256}"): Access.PUBLIC,
    ("PUT", "/v1/blobs/{sha256}"): Access.ADMIN,
    ("POST", "/v1/populations"): Access.ADMIN,
    ("GET", "/v1/populations"): Access.ADMIN,
    ("GET", "/v1/populations/{name}"): Access.ADMIN,
    ("PATCH", "/v1/populations/{name}"): Access.ADMIN,
    ("GET", "/v1/populations/{name}/budget"): Access.ADMIN,
    ("GET", "/v1/populations/{name}/budget/entries"): Access.ADMIN,
    ("PUT", "/v1/populations/{name}/signers/{public}"): Access.ADMIN,
    ("POST", "/v1/tokens"): Access.ADMIN,
    ("GET", "/v1/tokens"): Access.ADMIN,
    ("DELETE", "/v1/tokens/{token}"): Access.ADMIN,
    ("POST", "/v1/experiments"): Access.ADMIN,
    ("GET", "/v1/experiments"): Access.ADMIN,
    ("GET", "/v1/experiments/{experiment}"): Access.ADMIN,
    ("POST", "/v1/experiments/{experiment}/stop"): Access.ADMIN,
    ("GET", "/v1/experiments/{experiment}/rounds"): Access.ADMIN,
    ("GET", "/v1/experiments/{experiment}/models"): Access.ADMIN,
    ("GET", "/v1/models/{sha256}"): Access.ADMIN,
    ("GET", "/v1/devices"): Access.ADMIN,
    ("POST", "/v1/devices/{device}/revoke"): Access.ADMIN,
    ("GET", "/v1/events"): Access.ADMIN,
    ("GET", "/v1/audit"): Access.ADMIN,
    ("GET", "/v1/device/population"): Access.ENROL,
    ("POST", "/v1/device/enrol"): Access.ENROL,
    ("POST", "/v1/device/check-in"): Access.DEVICE,
    ("POST", "/v1/device/withdraw"): Access.DEVICE,
    ("GET", "/v1/device/experiments/{experiment}/lineage"): Access.DEVICE,
    ("HEAD", "/v1/device/tasks/{task}/update"): Access.DEVICE,
    ("PATCH", "/v1/device/tasks/{task}/update"): Access.DEVICE_STREAM,
    ("POST", "/v1/device/tasks/{task}/progress"): Access.DEVICE,
    ("POST", "/v1/device/tasks/{task}/abort"): Access.DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/keys"): Access.DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/shares"): Access.DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/agreement"): Access.DEVICE,
    ("POST", "/v1/device/tasks/{task}/secure/reveal"): Access.DEVICE,
    ("GET", "/v1/device/tasks/{task}/secure/{awaited}"): Access.DEVICE,
}
