"""A client of the OpenAPI description that sends every field wrong once, as everybody who may ask: no answer is an
error of the coordinator, each comes in time, and each refusal says what it is.

The wrong requests are those of schemathesis: for every parameter and every field of a body a value of another type,
one beyond each bound, a missing one, one too many; and methods that a path does not have.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from principals_kit import Holder, Place, open_place
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode
from server_kit import Opener
from test_policy import REQUESTS

from coterie.server.auth.policy import POLICY
from tests.patience import patience

DESCRIPTION: Final = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
ANSWER_S: Final = 10.0
HOLDERS: Final = (
    Holder("nobody"),
    Holder("admin"),
    Holder("operator"),
    Holder("researcher", "people"),
    Holder("auditor", "people"),
    Holder("enrol", "people"),
    Holder("device", "people"),
    Holder("edge", "people"),
    Holder("edge aggregator", "people"),
    Holder("party's token"),
    Holder("party"),
)
LAST: Final = ("/withdraw", "/end", "/stop", "/revoke")
"""Of these paths one request may end what the others are about."""
NOT_OURS: Final = frozenset(("authorization", "content-length", "cookie", "host", "user-agent", "accept-encoding"))


@dataclass(frozen=True)
class Wrong:
    """One wrong request of a route. path: None where the path itself is right. what: what is wrong about it."""

    route: tuple[str, str]
    method: str
    path: str | None
    query: str
    headers: Mapping[str, str]
    body: bytes
    what: str

    def __str__(self) -> str:
        return f"{self.method} {self.route[1]} ({self.what}): {self.path or ''}?{self.query} {self.body[:200]!r}"

    def target(self, place: Place) -> str:
        """Where it goes, with the names of things that are there."""
        path, _, query = REQUESTS[self.route].path(place).partition("?")
        return f"{self.path or path}?{'&'.join(filter(None, (query, self.query)))}"


@cache
def wrong_requests() -> tuple[Wrong, ...]:
    """Every wrong request of every operation, those that may end something last."""
    described: Any = schemathesis.openapi.from_dict(json.loads(DESCRIPTION.read_text(encoding="utf-8")))
    found: list[Wrong] = []
    for operation in (result.ok() for result in described.get_all_operations()):
        route = (operation.method.upper(), operation.path)
        cases = described.iter_coverage_cases(
            operation, generation_modes=[GenerationMode.NEGATIVE], generation_config=described.config.generation
        )
        found += [_wrong(route, case) for case in cases]
    return tuple(sorted(found, key=lambda each: (each.route[0] == "DELETE", each.route[1].endswith(LAST))))


def _wrong(route: tuple[str, str], case: Any) -> Wrong:
    sent: Any = requests.Request(**case.as_transport_kwargs(base_url="http://coordinator")).prepare()
    parts = urlsplit(str(sent.url))
    body: bytes | str = sent.body or b""
    components = case.meta.components
    path_is_wrong = (
        ParameterLocation.PATH in components and components[ParameterLocation.PATH].mode is GenerationMode.NEGATIVE
    )
    return Wrong(
        route=route,
        method=str(sent.method),
        path=parts.path if path_is_wrong else None,
        query=parts.query,
        headers={name: value for name, value in sent.headers.items() if name.lower() not in NOT_OURS},
        body=body if isinstance(body, bytes) else body.encode(),
        what=case.meta.phase.data.description,
    )


def test_every_operation_has_wrong_requests() -> None:
    wanted = {route for route in POLICY if route[1].startswith("/v1/") and route[1] != "/v1/openapi.json"}
    assert {each.route for each in wrong_requests()} >= wanted
    asked = [each for each in wrong_requests() if each.route == ("POST", "/v1/experiments")]
    assert len(asked) > 300 and all(each.what for each in asked)


@pytest.mark.parametrize("holder", HOLDERS, ids=str)
def test_no_wrong_field_is_an_error_of_the_coordinator(holder: Holder, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            place = await open_place(operator)
            sender = await place.credential(holder)
            refused = 0
            for wrong in wrong_requests():
                async with asyncio.timeout(patience(ANSWER_S)):
                    answer = await sender.send(wrong.method, wrong.target(place), wrong.body, dict(wrong.headers))
                assert answer.status_code < 500, (str(wrong), answer.text)
                if answer.status_code >= 400 and wrong.method != "HEAD":
                    told = json.loads(answer.content)
                    assert {"code", "detail", "status"} <= set(told), (str(wrong), told)
                    refused += 1
            assert refused > len(wrong_requests()) // 2
            assert (await operator.http.get("/readyz")).status_code == 200

    asyncio.run(work())
