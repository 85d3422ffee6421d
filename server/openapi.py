"""The OpenAPI description: what the framework knows, and what it cannot know (credentials and problems)."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from coterie.protocol.device import NONCE_HEADER, PROBLEM_MEDIA_TYPE, Problem
from coterie.protocol.http_signatures import COMPONENTS, CONTENT_DIGEST, FIELDS, SIGNATURE, SIGNATURE_INPUT
from coterie.server.api_examples import illustrate
from coterie.server.api_fields import explain
from coterie.server.api_words import PARAMETERS
from coterie.server.auth.policy import Credential, RouteRule

SCHEMES: Final[Mapping[Credential, dict[str, Any]]] = {
    Credential.ROLE_TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "coterie_<role>_<id>_<secret>. An operation lists the roles that it takes; a token for one "
        "population sees and changes only what is of that population.",
    },
    Credential.ENROLMENT_TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "coterie_enrol_<id>_<secret>, of an edge aggregator coterie_edge_<id>_<secret>, of a party "
        "that is invited to a session coterie_party_<id>_<secret>",
    },
    Credential.SIGNATURE: {
        "type": "apiKey",
        "in": "header",
        "name": SIGNATURE,
        "description": f"HTTP Message Signatures (RFC 9421), Ed25519, with {SIGNATURE_INPUT} and {CONTENT_DIGEST} "
        f"(RFC 9530), over {', '.join(COMPONENTS)} and, where the request has them, {', '.join(FIELDS)}; keyid is the "
        f"id of the device or party, nonce what {NONCE_HEADER} of the answer before said. See "
        "docs/device-protocol.md#signatures.",
    },
}


def describe(app: FastAPI, policy: Mapping[tuple[str, str], RouteRule]) -> None:
    """Make ``app.openapi()`` give the whole description, made once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app, policy)
        return app.openapi_schema

    app.openapi = openapi


def _security(rule: RouteRule) -> list[dict[str, list[str]]]:
    credential = rule.credential
    return [] if credential is None else [{credential.value: sorted(rule.roles)}]


def _describe(app: FastAPI, policy: Mapping[tuple[str, str], RouteRule]) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        routes=app.routes,
        description="The control plane of researchers and operators, and the device plane. Every error is a "
        "problem document (RFC 9457).",
    )
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {credential.value: scheme for credential, scheme in SCHEMES.items()}
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schemas["Problem"].pop("$defs", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    explain(schemas)
    problem = {
        "description": "Refused; `code` says why and `hint` what to do.",
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            operation["security"] = _security(policy[(method.upper(), path)])
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = problem
            for parameter in operation.get("parameters", ()):
                if "description" not in parameter and parameter["name"] in PARAMETERS:
                    parameter["description"] = PARAMETERS[parameter["name"]]
    illustrate(schema)
    return schema
