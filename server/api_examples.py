"""An example for every operation of the OpenAPI description, made from the schemas themselves, so that none can be
forgotten or grow old: tests read each one as the message that it is an example of.
"""

from collections.abc import Mapping
from json import dumps
from typing import Any, Final

from coterie.protocol.conversion import to_json
from coterie.protocol.schema import DataSchema, Feature, Label

_HEX = "0123456789abcdef"
_PATTERNS: Final[Mapping[str, str]] = {
    r"^[0-9a-f]{64}$": _HEX * 4,
    r"^[A-Za-z0-9+/]+={0,2}$": "Y290ZXJpZQ==",
    r"^[A-Za-z0-9+/]{48}$": "Y290" * 12,
    r"^[A-Za-z0-9+/]{86}==$": "A" * 86 + "==",
    r"^[a-z_]+(\([0-9a-z_=., ]*\))?$": "uniform",
    r"^[A-Za-z0-9_.=+/-]+$": "Y290ZXJpZS1ub25jZQ",
    r"^[a-z0-9][a-z0-9._-]{0,62}$": "clinics",
    r"^[a-z0-9][a-z0-9_-]{0,31}$": "label-owner",
    **{
        rf"^{kind}_[0-9a-f]{{32}}$": f"{kind}_{_HEX * 2}" for kind in ("att", "dev", "exp", "pty", "ses", "task", "tok")
    },
}
_SCHEMA: Final = DataSchema(
    features=(Feature(name="age", low=0, high=120), Feature(name="pressure")), label=Label(name="ill", low=0, high=1)
)
_ROLES: Final = [{"name": "label-owner", "party": "Clinic"}, {"name": "feature-owner", "party": "Registry"}]
_FIELDS: Final[Mapping[str, Any]] = {
    "codecs": ["float32"],
    "cohort": 10,
    "data_schema": to_json(_SCHEMA),
    "deadline_s": 600.0,
    "lease_s": 300.0,
    "metric": "loss",
    "min_updates": 8,
    "name": "heart",
    "parameters": {"lr": 1.0},
    "phase": "training",
    "population": "clinics",
    "rounds": 50,
    "size": 4096,
    "status": "ok",
}
_OF_MESSAGES: Final[Mapping[tuple[str, str], Any]] = {
    ("ExperimentCreate", "rounds"): {"rounds": 50, "cohort": 10, "min_updates": 8},
    ("PopulationCreate", "name"): "clinics",
    ("PopulationView", "name"): "clinics",
    ("Problem", "status"): 404,
    ("ServerRule", "name"): "sgd",
    ("SessionCreate", "roles"): _ROLES,
    ("SessionTerms", "roles"): _ROLES,
    ("Abort", "code"): "data_empty",
}
_WHOLE: Final[Mapping[str, Any]] = {
    "PolicyChange": {"min_cohort": 10, "require_secure_aggregation": True},
    "TokenCreate": {"kind": "enrol", "population": "clinics", "uses": 100},
}
"""Of messages in which every field may be absent, or each only for some."""
_NEEDED: Final[Mapping[str, str]] = {
    "kind": "model",
    "repr-digest": "sha-256=:n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=:",
    "upload-length": "4096",
    "upload-offset": "0",
}
_PATHS: Final[Mapping[str, str]] = {
    "awaited": "roster",
    "device": _PATTERNS[r"^dev_[0-9a-f]{32}$"],
    "experiment": _PATTERNS[r"^exp_[0-9a-f]{32}$"],
    "name": "clinics",
    "public": _HEX * 4,
    "role": "label-owner",
    "sequence": "0",
    "session": _PATTERNS[r"^ses_[0-9a-f]{32}$"],
    "stage": "messages",
    "sha256": _HEX * 4,
    "task": _PATTERNS[r"^task_[0-9a-f]{32}$"],
    "token": _PATTERNS[r"^tok_[0-9a-f]{32}$"],
}
_SIGNED: Final = ("Content-Digest: sha-256=:…:", "Signature-Input: device=(…);…", "Signature: device=:…:")


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], place: tuple[str, str] = ("", "")) -> Any:
    """A value that a schema allows.

    place: the message and the field that it is for.
    """
    if (given := _OF_MESSAGES.get(place, _FIELDS.get(place[1]))) is not None and "$ref" not in schema:
        return given
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return _OF_MESSAGES.get(place) or _WHOLE.get(name) or example_of({**schemas[name], "title": name}, schemas)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("default") is not None:
        return schema["default"]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas, place)
    match schema.get("type"):
        case "object":
            return _object(schema, schemas)
        case "array":
            least = schema.get("minItems", 0)
            items = schema.get("prefixItems") or [schema.get("items", {})] * max(least, 1)
            return [example_of(item, schemas) for item in items]
        case "integer" | "number":
            least = schema.get("minimum", 1)
            return max(int(least), 1) if schema["type"] == "integer" else max(float(least), 0.5)
        case "boolean":
            return False
        case "string":
            return _text(schema)
        case _:
            return None


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    fields: Mapping[str, Any] = schema.get("properties", {})
    message = schema.get("title", "")
    if schema.get("minProperties"):
        value = schema.get("additionalProperties") or next(iter(schema["patternProperties"].values()))
        return {"1": example_of(value, schemas)}
    return {name: example_of(fields[name], schemas, (message, name)) for name in schema.get("required", ())}


def _text(schema: Mapping[str, Any]) -> str:
    if schema.get("format") == "date-time":
        return "2026-01-31T12:00:00Z"
    return _PATTERNS.get(schema.get("pattern", ""), "text")


def illustrate(api: dict[str, Any]) -> None:
    """Give every field and every JSON body an example, and every operation a line for curl (``x-codeSamples``)."""
    schemas = api["components"]["schemas"]
    for name, schema in schemas.items():
        for field, value in schema.get("properties", {}).items():
            value["examples"] = [example_of(value, schemas, (name, field))]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for body in bodies:
                for kind, content in body.get("content", {}).items():
                    if "json" in kind and content.get("schema"):
                        content["example"] = example_of(content["schema"], schemas)
            source = _curl(method, path, operation)
            operation["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": source}]


def _curl(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"curl -X {method.upper()}" if method != "head" else "curl --head"]
    needs = {name for need in operation.get("security", ()) for name in need}
    if needs & {"role", "enrol"}:
        parts.append('-H "Authorization: Bearer $TOKEN"')
    if "device" in needs:
        parts += [f"-H '{header}'" for header in _SIGNED]
    needed = [one for one in operation.get("parameters", ()) if one.get("required")]
    parts += [f"-H '{one['name']}: {_NEEDED[one['name']]}'" for one in needed if one["in"] == "header"]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"-H 'Content-Type: {kind}'")
        parts.append(f"-d '{dumps(content['example'])}'" if "example" in content else "--data-binary @FILE")
    address = path
    for name, value in _PATHS.items():
        address = address.replace(f"{{{name}}}", value)
    query = "&".join(f"{one['name']}={_NEEDED[one['name']]}" for one in needed if one["in"] == "query")
    query = f"?{query}" if query else ""
    return " ".join((*parts, f'"$COORDINATOR{address}{query}"'))
