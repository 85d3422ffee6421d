"""The OpenAPI description: nothing in it is without words, and every example is what it is an example of."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute
from jsonschema_rs import Draft202012Validator
from pydantic import TypeAdapter
from server_kit import Opener

from coterie.errors import NotFound
from coterie.protocol.device import Problem
from coterie.server.api_fields import descriptions_in
from coterie.server.app import ROUTERS, create_app
from coterie.server.problems import TITLES
from coterie.server.settings import Settings


@pytest.fixture
def app(settings: Settings) -> Any:
    """An application that is not started."""
    return create_app(settings)


def test_every_field_parameter_and_operation_says_what_it_is(app: Any) -> None:
    api = app.openapi()
    silent = [
        f"{name}.{field}"
        for name, schema in api["components"]["schemas"].items()
        for field, value in schema.get("properties", {}).items()
        if len(value.get("description", "")) < 5
    ]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            silent += [f"{path} {one['name']}" for one in operation.get("parameters", ()) if not one.get("description")]
            if not operation.get("summary") or not operation.get("x-codeSamples"):
                silent.append(f"{method} {path}")
    assert not silent


UNITS = {"_s": "second", "_ms": "millisecond", "_us": "microsecond", "_bytes": "byte", "bytes_": "byte"}
UNBOUNDED = {"Target.value"}
"""Of requests: any finite number."""
OF_ANY_SIGN = {"ParticipantView.loss", "SecureSection.low", "Target.value"}
"""Of requests and answers."""


def test_every_field_states_its_unit_default_and_example(app: Any) -> None:
    schemas = app.openapi()["components"]["schemas"]
    lacking: list[str] = []
    for name, schema in schemas.items():
        for field, value in schema.get("properties", {}).items():
            units = {word for affix, word in UNITS.items() if field.endswith(affix) or field.startswith(affix)}
            said = value["description"].lower()
            lacking += [f"{name}.{field}: {word}" for word in units if word not in said]
            if field not in schema.get("required", ()) and "default" not in value:
                lacking.append(f"{name}.{field}: default")
            if len(value.get("examples", ())) != 1:
                lacking.append(f"{name}.{field}: example")
    assert not lacking


def test_every_number_and_text_of_a_request_is_bounded(app: Any) -> None:
    api = app.openapi()
    schemas = api["components"]["schemas"]
    loose: set[str] = set()
    seen: set[str] = set()

    def walk(value: dict[str, Any], place: str) -> None:
        if "$ref" in value and (name := value["$ref"].rsplit("/", 1)[-1]) not in seen:
            seen.add(name)
            for field, inner in schemas[name].get("properties", {}).items():
                walk(inner, f"{name}.{field}")
        for inner in (*value.get("anyOf", ()), *value.get("prefixItems", ()), *value.get("oneOf", ())):
            walk(inner, place)
        for inner in (value.get("items"), value.get("additionalProperties")):
            if isinstance(inner, dict):
                walk(cast("dict[str, Any]", inner), place)
        bounds = {"integer": ("maximum",), "number": ("maximum", "exclusiveMaximum"), "string": ("maxLength",)}
        fixed = {"enum", "const", "pattern", "format"} & value.keys()
        if value.get("type") in bounds and not fixed and not set(bounds[value["type"]]) & value.keys():
            loose.add(place)

    for operations in api["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                walk(content.get("schema", {}), "body")
    assert seen and loose == UNBOUNDED


def numbers_of(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of the numbers within a field's own, other messages left out."""
    if schema.get("type") in ("integer", "number"):
        yield place, schema
    for inner in (*schema.get("anyOf", ()), *schema.get("prefixItems", ()), schema.get("items")):
        if isinstance(inner, dict):
            yield from numbers_of(cast("dict[str, Any]", inner), place)


def test_every_number_states_how_small_it_may_be(app: Any) -> None:
    schemas = app.openapi()["components"]["schemas"]
    loose = {
        place
        for name, schema in schemas.items()
        for field, value in schema.get("properties", {}).items()
        for place, number in numbers_of(value, f"{name}.{field}")
        if not {"minimum", "exclusiveMinimum", "enum", "const"} & number.keys()
    }
    assert loose == OF_ANY_SIGN


def says_something(example: Any) -> bool:
    """Whether a value is more than brackets and stand-ins around nothing."""
    if isinstance(example, list):
        return any(says_something(one) for one in cast("list[Any]", example))
    return example not in ({}, "", "text", None)


@pytest.mark.parametrize("empty", [[], [[]], {}, "", "text", None, [{}], [["text"]]], ids=repr)
def test_an_empty_example_says_nothing(empty: Any) -> None:
    assert not says_something(empty)


def test_every_example_of_a_field_fits_it_and_says_something(app: Any) -> None:
    components = app.openapi()["components"]
    faults: list[str] = []
    for name, schema in components["schemas"].items():
        for field, value in schema.get("properties", {}).items():
            (example,) = value["examples"]
            checked = Draft202012Validator({**value, "components": components})
            faults += [f"{name}.{field}: {fault.message}" for fault in checked.iter_errors(example)]
            if not says_something(example):
                faults.append(f"{name}.{field}: {example!r} says nothing")
    assert not faults


def test_the_example_of_a_problem_is_one_that_is_sent(app: Any) -> None:
    fields = app.openapi()["components"]["schemas"]["Problem"]["properties"]
    example = {name: value["examples"][0] for name, value in fields.items()}
    sent = NotFound(example["detail"], code=example["code"])
    assert (example["doc"], example["status"], example["title"]) == (sent.doc, sent.status, TITLES[sent.status])
    assert example["type"] == Problem.of(sent, title=example["title"]).type
    assert "path" in fields["instance"]["description"] and "Coterie-Trace" in fields["trace_id"]["description"]


def test_an_experiment_is_described_in_the_states_that_it_is_set_to(app: Any) -> None:
    field = app.openapi()["components"]["schemas"]["ExperimentView"]["properties"]["state"]
    assert set(field["enum"]) == {"running", "finished", "stopped"}


def test_every_example_is_read_as_its_message(app: Any) -> None:
    paths = app.openapi()["paths"]
    read = 0
    for route in (route for router in ROUTERS for route in router.routes):
        if not isinstance(route, APIRoute):
            continue
        for method in sorted(route.methods or ()):
            operation: dict[str, Any] = paths[route.path][method.lower()]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                kind: Any = route.body_field and route.body_field.field_info.annotation
                TypeAdapter[Any](kind).validate_json(json.dumps(body["example"]))
                read += 1
            answers = [
                content["example"]
                for status, answer in operation["responses"].items()
                for content in answer.get("content", {}).values()
                if status != "default" and content.get("example") is not None
            ]
            if route.response_model is not None:
                for answer in answers:
                    TypeAdapter[Any](route.response_model).validate_json(json.dumps(answer))
                    read += 1
    assert read > 35


def test_lines_for_curl_name_no_placeholder_of_a_path(app: Any) -> None:
    for path, operations in app.openapi()["paths"].items():
        for operation in operations.values():
            source = operation["x-codeSamples"][0]["source"]
            assert "{" not in source.split("-d ")[0].rsplit("$COORDINATOR", 1)[-1], path


def test_docstrings_are_read_entry_by_entry() -> None:
    text = "A thing. a, b: of two; c: of `one`, and more. Not: this. d is none: see c."
    assert descriptions_in(text, {"a": 0, "b": 0, "c": 0, "d": 0}) == {
        "a": "Of two.",
        "b": "Of two.",
        "c": "Of `one`, and more. Not: this. d is none: see c.",
    }


def test_the_address_alone_leads_to_the_page_for_people(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            answer = await operator.http.get("/", follow_redirects=True)
            assert (answer.status_code, answer.url.path) == (200, "/docs")

    asyncio.run(work())
