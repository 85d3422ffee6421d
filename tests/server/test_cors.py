"""Cross-origin requests: off until origins are listed, then for those alone, and never with credentials."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from server_kit import Opener, Operator, fleet

from coterie.errors import ConfigurationError
from coterie.server.app import create_app
from coterie.server.cors import origins
from coterie.server.settings import Settings

PAGE = "https://app.example.org"
LISTED = f"{PAGE}, http://localhost:5173"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "signature-input, content-digest"}
PATH = "/v1/device/check-in"
ALLOWS = "access-control-allow-"


def with_origins(coordinator: Opener, listed: str, check: Callable[[Operator], Awaitable[None]]) -> None:
    async def work() -> None:
        async with coordinator(cors_origins=listed) as operator:
            await check(operator)

    asyncio.run(work())


def allowances(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith(ALLOWS)}


def test_without_a_list_no_origin_is_allowed(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        preflight = await operator.http.options(PATH, headers={"Origin": PAGE, **ASKS})
        assert preflight.status_code == 405 and allowances(preflight) == {}
        assert allowances(await operator.http.get("/healthz", headers={"Origin": PAGE})) == {}

    with_origins(coordinator, "", check)


def test_a_preflight_of_a_listed_origin_says_what_a_device_in_a_page_needs(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        for origin in (PAGE, "http://localhost:5173"):
            preflight = await operator.http.options(PATH, headers={"Origin": origin, **ASKS})
            assert preflight.status_code == 200
            told = allowances(preflight)
            assert told[f"{ALLOWS}origin"] == origin and "Origin" in preflight.headers["vary"]
            assert {"POST", "PATCH"} <= set(told[f"{ALLOWS}methods"].split(", "))
            assert {"Signature-Input", "Signature", "Content-Digest"} <= set(told[f"{ALLOWS}headers"].split(", "))
            assert f"{ALLOWS}credentials" not in told

    with_origins(coordinator, LISTED, check)


@pytest.mark.parametrize(
    "changes",
    [
        {"Origin": "https://evil.example.org"},
        {"Origin": f"{PAGE}.evil.org"},
        {"Origin": "null"},
        {"Access-Control-Request-Method": "TRACE"},
        {"Access-Control-Request-Headers": "cookie"},
    ],
)
def test_a_preflight_of_anything_else_is_refused_by_name(changes: dict[str, str], coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        preflight = await operator.http.options(PATH, headers={"Origin": PAGE, **ASKS, **changes})
        assert (preflight.status_code, preflight.json()["code"]) == (403, "cors_refused")
        assert allowances(preflight) == {}

    with_origins(coordinator, LISTED, check)


def test_answers_and_refusals_may_be_read_by_listed_origins_alone(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        (device,) = await fleet(operator, await operator.population(), 1)
        cases: tuple[tuple[str, dict[str, str]], ...] = (
            (PAGE, {f"{ALLOWS}origin": PAGE}),
            ("https://evil.example.org", {}),
        )
        for origin, expected in cases:
            answer = await device.send("POST", PATH, b"{}", {"Origin": origin})
            assert answer.status_code == 200 and allowances(answer) == expected
            assert "Coterie-Nonce" in answer.headers["access-control-expose-headers"]
            refused = await operator.http.post(PATH, headers={"Origin": origin, "Cookie": "a=b"})
            assert refused.status_code == 401 and allowances(refused) == expected

    with_origins(coordinator, LISTED, check)


@pytest.mark.parametrize("wrong", ["*", "app.example.org", f"{PAGE}/", f"{PAGE},*", "https://u:p@a.org", "file://x"])
def test_what_is_no_origin_is_refused_at_the_start(wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_app(Settings(cors_origins=wrong))
    assert caught.value.reason == "cors_origin_invalid"


def test_a_list_is_read_with_or_without_spaces() -> None:
    assert origins(" https://a.org,https://b.org:8443 ,") == ("https://a.org", "https://b.org:8443")
