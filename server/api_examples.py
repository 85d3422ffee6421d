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
_TOKEN: Final = _PATTERNS[r"^tok_[0-9a-f]{32}$"]
_EXPERIMENT: Final = _PATTERNS[r"^exp_[0-9a-f]{32}$"]
_TASK: Final = _PATTERNS[r"^task_[0-9a-f]{32}$"]
_DEVICE: Final = _PATTERNS[r"^dev_[0-9a-f]{32}$"]
_MEANS: Final = {"accuracy": 0.87, "loss": 0.31}
_SHARE: Final = _PATTERNS[r"^[A-Za-z0-9+/]{48}$"]
_BUDGET: Final = {
    "experiment": _EXPERIMENT,
    "rounds_spent": 12,
    "rounds_reserved": 1,
    "rounds_refunded": 0,
    "epsilon_spent": 1.31,
    "epsilon": 1.37,
    "delta": 1e-6,
    "limit": 4.0,
}


_PARTY: Final = {"role": "label-owner", "party": "Clinic"}


def _secret(kind: str) -> str:
    return f"coterie_{kind}_{_HEX * 2}_" + "s" * 43


_FIELDS: Final[Mapping[str, Any]] = {
    "codecs": ["float32"],
    "cohort": 10,
    "data_schema": to_json(_SCHEMA),
    "deadline_s": 600.0,
    "delta": 1e-6,
    "lease_s": 300.0,
    "metric": "loss",
    "min_updates": 8,
    "name": "heart",
    "next_cursor": "NDI=",
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
    ("Abort", "detail"): "No rows are left after the filter.",
    ("Agreements", "signatures"): {"1": "A" * 86 + "=="},
    ("Outcome", "cause"): "too_few",
    ("Outcome", "detail"): "Too few clients are left to open the sum.",
    ("SharesFor", "boxes"): {"1": "Y290ZXJpZQ=="},
    ("AuditEntry", "action"): "token.created",
    ("AuditEntry", "actor"): _TOKEN,
    ("AuditEntry", "data"): {"kind": "enrol"},
    ("AuditEntry", "subject"): _TOKEN,
    ("BudgetLimit", "delta"): 1e-6,
    ("BudgetLimit", "epsilon"): 8.0,
    ("BudgetLimit", "scope"): "365 days",
    ("BudgetView", "experiments"): [_BUDGET],
    ("BudgetView", "limits"): [{"scope": "365 days", "epsilon": 8.0, "delta": 1e-6}],
    ("Capabilities", "features"): ["evaluate/1", "probe/1"],
    ("Capabilities", "secure"): ["secagg/1"],
    ("CheckIn", "capabilities"): {"codecs": ["float32", "int8"], "threads": 4},
    ("CheckIn", "experiments"): [_EXPERIMENT],
    ("CheckIn", "pending"): [_TASK],
    ("CheckInResponse", "ended"): [_EXPERIMENT],
    ("CheckInResponse", "settled"): {_TASK: "counted"},
    ("DataReport", "labels"): [0, 1],
    ("DeviceView", "failure"): "lease_expired",
    ("EdgeTerms", "labels"): [0, 1],
    ("EdgeTerms", "reducer"): "mean",
    ("EdgeTerms", "selection"): "uniform",
    ("Endorsement", "subject"): "ward-7",
    ("EnrolRequest", "capabilities"): {"codecs": ["float32", "int8"], "threads": 4},
    ("ExperimentCreate", "evaluation_metrics"): ["auc"],
    ("MessageReceipt", "next"): {"state": "summed", "cause": None, "detail": ""},
    ("UploadReceipt", "next"): {"alive": "/w==", "dealt": "/w==", "digest": _HEX * 4},
    ("ExperimentCreate", "hyper"): {"lr": 0.05},
    ("ExperimentCreate", "privacy"): {"level": "user", "clip": 1.0, "delta": 1e-6, "noise_multiplier": 1.1},
    ("ExperimentCreate", "secure"): {"norm": 1.0},
    ("ExperimentView", "reason"): "completed",
    ("Fault", "detail"): "Input should be greater than or equal to 1",
    ("Fault", "pointer"): "/rounds/cohort",
    ("LedgerEntry", "event"): {"kind": "spend", "experiment": _EXPERIMENT, "round": 1},
    ("Links", "links"): [{"round": 1, "version": _HEX * 4}],
    ("ModelView", "metrics"): _MEANS,
    ("ParticipantView", "client"): _DEVICE,
    ("PartyRole", "party"): "Clinic",
    ("PartyView", "party"): "Clinic",
    ("PolicyChange", "algorithms"): ["fedavg"],
    ("PopulationCreate", "signers"): [_HEX * 4],
    ("PopulationPolicy", "algorithms"): ["fedavg"],
    ("PopulationView", "policy"): {"min_cohort": 10, "require_secure_aggregation": True},
    ("PopulationView", "signers"): [_HEX * 4],
    ("PrivacyTerms", "mechanism"): "gaussian",
    ("Problem", "code"): "experiment_unknown",
    ("Problem", "detail"): "There is no experiment 'exp_7'.",
    ("Problem", "doc"): "docs/errors.md#experiment-unknown",
    ("Problem", "errors"): [{"pointer": "/rounds/cohort", "detail": "Input should be greater than or equal to 1"}],
    ("Problem", "hint"): "`coterie list` shows those there are.",
    ("Problem", "instance"): "/v1/experiments/exp_7",
    ("Problem", "title"): "Not found",
    ("Problem", "trace_id"): "3f9a0c51d2e84b67",
    ("Problem", "type"): "/problems/experiment-unknown",
    ("Reveal", "mask_shares"): {"3": _SHARE},
    ("Reveal", "self_shares"): {"0": _SHARE, "1": _SHARE},
    ("RoundPolicy", "hyper_schedule"): {"lr": [0.1, 0.05, 0.025]},
    ("RoundPolicy", "best"): {"metric": "loss", "mode": "min"},
    ("RoundPolicy", "labels"): [0, 1],
    ("RoundPolicy", "trusted"): _DEVICE,
    ("RoundView", "cause"): "too_few_updates",
    ("RoundView", "fairness"): {
        "loss": {"clients": 10.0, "worst_decile": 0.52, "median": 0.3, "best_decile": 0.12, "deviation": 0.11}
    },
    ("RoundView", "metrics"): _MEANS,
    ("RoundView", "participants"): [{"client": _DEVICE, "lag": 0, "loss": 0.31}],
    ("RoundView", "training"): _MEANS,
    ("SessionCreated", "detail"): "The join is done.",
    ("SessionCreated", "parties"): [_PARTY],
    ("SessionCreated", "reason"): "ended",
    ("SessionCreated", "tokens"): {"feature-owner": _secret("party"), "label-owner": _secret("party")},
    ("SessionEnd", "detail"): "The join is done.",
    ("SessionView", "detail"): "The join is done.",
    ("SessionView", "parties"): [_PARTY],
    ("SessionView", "reason"): "ended",
    ("Task", "signature"): _PATTERNS[r"^[A-Za-z0-9+/]{86}==$"],
    ("Task", "hyper"): {"lr": 0.05},
    ("TokenCreated", "token"): _secret("enrol"),
    ("UserLevel", "adaptive"): {"quantile": 0.5, "rate": 0.2},
}
_WHOLE: Final[Mapping[str, Any]] = {
    "LinearMethod": {"method": "linear", "link": "logistic", "epochs": 8},
    "PolicyChange": {"min_cohort": 10, "require_secure_aggregation": True},
    "TokenCreate": {"kind": "enrol", "population": "clinics", "uses": 100},
    "TreesMethod": {"method": "trees", "trees": 50, "depth": 3},
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
    for one_of_several in ("anyOf", "oneOf"):
        if one_of_several in schema:
            return example_of(schema[one_of_several][0], schemas, place)
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
