"""Two populations with all that one may hold, and whoever may ask for it."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from server_kit import RESEARCHER, SCHEMA, Device, Operator, once, sha256

from coterie.protocol.conversion import to_json
from coterie.protocol.signing import SigningKey

PUBLIC_KEY = SigningKey.from_seed(b"s" * 32).public
JOINT = {"name": "joint", "roles": [{"name": "owner", "party": "Clinic"}, {"name": "feature", "party": "Registry"}]}
ROWS = b"rows that only people's evaluation knows"


@dataclass(frozen=True)
class Holder:
    """Whoever asks. kind: of a token, or of a device; population: for which it is, None for all; state: its own."""

    kind: str
    population: str | None = None
    state: str = "valid"

    def __str__(self) -> str:
        scope = "" if self.population is None else f" of {self.population}"
        return f"{self.kind}{scope}{'' if self.state == 'valid' else f', {self.state}'}"


@dataclass(frozen=True)
class Sender:
    """Sends requests with one credential. headers: that prove it, for a method, path, body and other headers."""

    http: httpx.AsyncClient
    headers: Callable[[str, str, bytes, Mapping[str, str]], dict[str, str]]

    async def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """One request. body: bytes, or what is sent as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if method in ("GET", "HEAD"):
            raw = b""
        kind = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
        own = self.headers(method, path, raw, headers or {})
        return await self.http.request(method, path, content=raw, headers={**kind, **(headers or {}), **own})


@dataclass(frozen=True)
class Place:
    """A coordinator with the populations `people` and `others`; what is named here is of `people`."""

    operator: Operator
    experiment: str
    model: str
    request: dict[str, Any]
    target: str
    spare_token: str
    session: str
    enrolment: dict[str, str]
    rows: bytes = ROWS

    @property
    def rows_digest(self) -> str:
        """The digest of the evaluation rows."""
        return sha256(self.rows)

    @property
    def new_population(self) -> dict[str, Any]:
        """A population to make."""
        return {"name": "more", "data_schema": to_json(SCHEMA), "signers": [RESEARCHER.public]}

    @property
    def newcomer(self) -> dict[str, Any]:
        """A device that wants to join."""
        return {"public_key": SigningKey.generate().public, "schema_digest": SCHEMA.digest}

    async def token(self, kind: str, population: str | None = None, **more: Any) -> dict[str, Any]:
        """A new token by the administrator's."""
        bounds = {"max_clients": 5} if kind == "edge" else {}
        body = {"kind": kind, "population": population, **bounds, **more}
        return await self.operator.ok("POST", "/v1/tokens", json=body, headers=once())

    async def holder(self, kind: str, population: str | None = None) -> Operator:
        """Somebody with a new token of a role."""
        return Operator(self.operator.http, (await self.token(kind, population))["token"], self.operator.app)

    async def credential(self, holder: Holder) -> Sender:
        """What a holder asks with."""
        match holder.kind:
            case "nobody":
                return self._bearer(None)
            case "garbage":
                return self._bearer("coterie_admin_zz")
            case "wrong secret":
                return self._bearer(f"{self.operator.token[:-4]}AAAA")
            case "device" | "edge aggregator":
                return await self._device(holder)
            case "party's token":
                return self._bearer((await self._invitation(holder))[1])
            case "party":
                return await self._party(holder)
            case _:
                ttl = {"expires_s": 1} if holder.state == "expired" else {}
                made = await self.token(holder.kind, holder.population, **ttl)
                if holder.state == "expired":
                    await asyncio.sleep(1.05)
                if holder.state == "revoked":
                    await self.operator.ok("DELETE", f"/v1/tokens/{made['id']}")
                return self._bearer(made["token"])

    def _bearer(self, token: str | None) -> Sender:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}

        def bearer(method: str, path: str, body: bytes, others: Mapping[str, str]) -> dict[str, str]:
            return headers

        return Sender(self.operator.http, bearer)

    async def _device(self, holder: Holder) -> Sender:
        kind = "edge" if holder.kind == "edge aggregator" else "enrol"
        token = (await self.token(kind, holder.population))["token"]
        device = await Device(self.operator.http).enrol(token)
        if holder.state == "another's signature":
            device.key = SigningKey.generate()
        if holder.state == "revoked":
            await self.operator.ok("POST", f"/v1/devices/{device.id}/revoke")
        nonces = self.operator.app.state.coordinator.identity.nonces
        return Sender(
            self.operator.http,
            lambda method, path, body, others: device.signed(method, path, body, nonces.issue(device.id), others),
        )

    async def _invitation(self, holder: Holder) -> tuple[str, str]:
        """A session, and the token of a role in it."""
        body = JOINT | ({"expires_s": 1} if holder.state == "expired" else {})
        made = await self.operator.ok("POST", "/v1/sessions", json=body, headers=once())
        if holder.state == "expired":
            await asyncio.sleep(1.05)
        if holder.state == "revoked":
            await self.operator.ok("POST", f"/v1/sessions/{made['id']}/end", json={})
        return made["id"], made["tokens"]["owner"]

    async def _party(self, holder: Holder) -> Sender:
        _, token = await self._invitation(holder)
        # A party signs as a device does, with its own id and key.
        party = Device(self.operator.http)
        headers = {"Authorization": f"Bearer {token}"}
        body = {"public_key": party.key.public}
        party.id = (await self.operator.http.post("/v1/party/join", json=body, headers=headers)).json()["party"]
        if holder.state == "another's signature":
            party.key = SigningKey.generate()
        nonces = self.operator.app.state.coordinator.identity.nonces
        return Sender(
            self.operator.http,
            lambda method, path, body, others: party.signed(method, path, body, nonces.issue(party.id), others),
        )

    def assert_tells_nothing_of_people(self, route: tuple[str, str], answer: httpx.Response) -> None:
        """An answer to somebody of `others` names nothing of `people`."""
        named = (self.experiment, self.target, self.spare_token, '"people"', self.model)
        found = [name for name in named if name in answer.text]
        assert not found, (route, found)


async def open_place(operator: Operator) -> Place:
    """Both populations, each with a device; an experiment over `people` with a version, and a token to take back. A
    session of parties.
    """
    enrolment = {name: await operator.population(name) for name in ("people", "others")}
    target = await Device(operator.http).enrol(enrolment["people"])
    await Device(operator.http).enrol(enrolment["others"])
    request = (await operator.request("people")).model_dump(mode="json")
    view = await operator.ok("POST", "/v1/experiments", json=request, headers=once())
    (version,) = await operator.models(view["id"])
    await operator.put(ROWS, "evaluation")
    body = {"kind": "enrol", "population": "people"}
    spare = await operator.ok("POST", "/v1/tokens", json=body, headers=once())
    session = await operator.ok("POST", "/v1/sessions", json=JOINT, headers=once())
    return Place(
        operator=operator,
        experiment=view["id"],
        model=version["sha256"],
        request=request,
        target=target.id,
        spare_token=spare["id"],
        session=session["id"],
        enrolment=enrolment,
    )
