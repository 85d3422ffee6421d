"""Scripted operators and devices over HTTP, in process or real: every request they make is one that a real client
makes.
"""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.evaluate import evaluation_sections
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.plan.manifest import DELTA, METRICS, Manifest
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.control import ExperimentCreate, RoundPolicy, ServerRule
from coterie.protocol.conversion import to_json
from coterie.protocol.device import BlobRef, PlanRef, Task
from coterie.protocol.features import FEATURES
from coterie.protocol.http_signatures import FIELDS, RequestHead, authority_of, content_digest, sign_request
from coterie.protocol.layout import Layout
from coterie.protocol.metrics import MetricSums
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.signing import SigningKey, sign_plan
from coterie.protocol.tensors import encode_tensors
from coterie.protocol.update import encode_update
from coterie.server.app import create_app
from coterie.server.faults import CoordinatorFaults
from coterie.server.settings import Settings
from tests.lock_order import in_order
from tests.patience import patience

SCHEMA = DataSchema(features=(Feature(name="x", shape=(2,)),), label=Label(name="y", low=0, high=1))
RESEARCHER = SigningKey.from_seed(b"r" * 32)
SIZE = 4
MOST_RESTARTS = 8
"""So often may a coordinator begin anew while a device sends one request."""


def layout() -> Layout:
    """Two tensors, four numbers."""
    return Layout.of({"w": (3,), "b": (1,)})


@cache
def manifest() -> Manifest:
    """A plan whose trainer is the test itself."""
    model = ExternalModel({"w": (3,), "b": (1,)}, metrics=("accuracy",))
    return compile_plan(Experiment(name="tiny", model=model, schema=SCHEMA, rounds=policy())).plan.manifest


def initial_weights() -> bytes:
    """Version 0: all zeros."""
    return encode_tensors(layout().unflatten(np.zeros(SIZE, np.float32)))


@dataclass(frozen=True)
class Recipe:
    """What an experiment is made of."""

    manifest: Manifest
    graphs: Mapping[str, bytes]
    initial: bytes
    evaluation: bytes | None = None


def tiny() -> Recipe:
    """The plan whose trainer is the test itself: zeros to begin with, no graphs."""
    return Recipe(manifest(), {}, initial_weights())


@cache
def measured() -> Recipe:
    """A compiled plan with an eval graph, and rows for the coordinator to measure on."""
    rows = {"x": np.ones((5, 2), np.float32), "y": np.zeros(5, np.int32)}
    experiment = Experiment(
        name="measured",
        model=mlp((2, 2)),
        schema=SCHEMA,
        rounds=policy(),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        metrics={"accuracy": accuracy},
        evaluation=rows,
    )
    compiled = compile_plan(experiment)
    return Recipe(compiled.plan.manifest, compiled.plan.graphs, compiled.initial_bytes, encode_tensors(rows))


def sha256(data: bytes) -> str:
    """SHA-256 as hex."""
    return hashlib.sha256(data).hexdigest()


def policy(**changes: Any) -> RoundPolicy:
    """Two rounds of two updates, no evaluation, short deadlines."""
    times = {"deadline_s": patience(30.0), "lease_s": patience(20.0)}
    fields = {"rounds": 2, "cohort": 2, "evaluate_every": 0, "weight_cap": 100, **times}
    return RoundPolicy.model_validate({**fields, **changes})


def once() -> dict[str, str]:
    """A fresh idempotency key, as a header."""
    return {"Idempotency-Key": secrets.token_hex(8)}


@dataclass
class Operator:
    """An administrator and researcher."""

    http: httpx.AsyncClient
    token: str
    app: Any = None

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request with the admin token."""
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)

    async def ok(self, method: str, path: str, **options: Any) -> Any:
        """One request that must succeed; its JSON."""
        answer = await self.call(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def population(self, name: str = "people") -> str:
        """A population that accepts the researcher's plans, and an enrolment token for it."""
        body = {"name": name, "data_schema": to_json(SCHEMA), "signers": [RESEARCHER.public]}
        await self.ok("POST", "/v1/populations", json=body)
        token = {"kind": "enrol", "population": name}
        made = await self.ok("POST", "/v1/tokens", json=token, headers=once())
        return made["token"]

    async def put(self, data: bytes, kind: str) -> BlobRef:
        """Upload a blob."""
        digest = sha256(data)
        await self.ok("PUT", f"/v1/blobs/{digest}", params={"kind": kind}, content=data)
        return BlobRef(sha256=digest, size=len(data))

    async def request(
        self,
        population: str = "people",
        recipe: Recipe | None = None,
        lr: float = 1.0,
        secure: SecureAggregation | None = None,
        reducer: str = "mean",
        **changes: Any,
    ) -> ExperimentCreate:
        """Upload a plan and its initial weights; the request that makes an experiment of them."""
        made = recipe or tiny()
        await self.put(made.manifest.data, "plan")
        for graph in made.graphs.values():
            await self.put(graph, "graph")
        plan = made.manifest.id
        return ExperimentCreate(
            name=made.manifest.name,
            population=population,
            plan=PlanRef(id=plan, signature=sign_plan(RESEARCHER, plan), signer=RESEARCHER.public),
            initial=await self.put(made.initial, "model"),
            evaluation=None if made.evaluation is None else await self.put(made.evaluation, "evaluation"),
            rounds=policy(**changes),
            server=ServerRule(name="sgd", parameters={"lr": lr, "momentum": 0.5}),
            reducer=reducer,
            secure=secure,
        )

    async def experiment(
        self,
        population: str = "people",
        recipe: Recipe | None = None,
        lr: float = 1.0,
        secure: SecureAggregation | None = None,
        reducer: str = "mean",
        **changes: Any,
    ) -> str:
        """Start an experiment; its id."""
        request = await self.request(population, recipe, lr, secure, reducer, **changes)
        view = await self.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
        return view["id"]

    async def state(self, experiment: str) -> dict[str, Any]:
        """The experiment as it stands."""
        return await self.ok("GET", f"/v1/experiments/{experiment}")

    async def rounds(self, experiment: str) -> list[dict[str, Any]]:
        """Its rounds."""
        return (await self.ok("GET", f"/v1/experiments/{experiment}/rounds"))["items"]

    async def models(self, experiment: str) -> list[dict[str, Any]]:
        """Its model versions."""
        return (await self.ok("GET", f"/v1/experiments/{experiment}/models"))["items"]

    async def finished(self, experiment: str, seconds: float = 60) -> dict[str, Any]:
        """Wait until the experiment is over."""
        async with asyncio.timeout(patience(seconds)):
            while (view := await self.state(experiment))["state"] == "running":
                await asyncio.sleep(0.02)
        return view

    async def until_round(self, experiment: str, number: int, state: str, seconds: float = 60) -> dict[str, Any]:
        """Wait until a round is in a state."""
        async with asyncio.timeout(patience(seconds)):
            while True:
                for entry in await self.rounds(experiment):
                    if entry["round"] == number and entry["state"] == state:
                        return entry
                await asyncio.sleep(0.02)


@dataclass
class Device:
    """A device with a key of its own."""

    http: httpx.AsyncClient
    key: SigningKey = field(default_factory=SigningKey.generate)
    id: str = ""
    nonce: str = "none-yet-but-long-enough"

    async def enrol(self, token: str) -> "Device":
        """Join the population of an enrolment token."""
        body = {"public_key": self.key.public, "schema_digest": SCHEMA.digest}
        headers = {"Authorization": f"Bearer {token}"}
        answer = await self.http.post("/v1/device/enrol", json=body, headers=headers)
        assert answer.is_success, answer.text
        self.id, self.nonce = answer.json()["device_id"], answer.json()["nonce"]
        return self

    def signed(
        self,
        method: str,
        path: str,
        body: bytes,
        nonce: str | None = None,
        headers: Mapping[str, str] | None = None,
        authority: str | None = None,
    ) -> dict[str, str]:
        """The headers of a signed request, beside those given."""
        bare, _, query = path.partition("?")
        covered = {name.lower(): value for name, value in (headers or {}).items() if name.lower() in FIELDS}
        fields = {"content-digest": content_digest(sha256(body)), **covered}
        here = authority or authority_of(self.http.base_url.netloc.decode(), self.http.base_url.scheme)
        return sign_request(
            self.key, RequestHead(method, here, bare, query, fields), device=self.id, nonce=nonce or self.nonce
        )

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        nonce: str | None = None,
    ) -> httpx.Response:
        """One signed request, signed again when its nonce is stale: for each time that the coordinator begins anew."""
        for _ in range(MOST_RESTARTS):
            answer = await self.once(method, path, body, headers, nonce)
            if nonce is not None or answer.status_code != 401:
                return answer
            if answer.headers.get("Coterie-Problem") not in ("nonce_stale", "nonce_used"):
                return answer
        return await self.once(method, path, body, headers, nonce)

    async def once(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        nonce: str | None = None,
    ) -> httpx.Response:
        """One signed request."""
        kind = {"Content-Type": "application/json"} if body[:1] == b"{" and method == "POST" else {}
        whole = {**kind, **(headers or {}), **self.signed(method, path, body, nonce, headers)}
        answer = await self.http.request(method, path, content=body, headers=whole)
        self.nonce = answer.headers.get("Coterie-Nonce", self.nonce)
        return answer

    async def check_in(self, pending: Sequence[str] = ()) -> dict[str, Any]:
        """Ask for a task."""
        pairs = ",".join(f'"{task}"' for task in pending)
        told = json.dumps(tuple(FEATURES))
        can = f'"trainers":["plan","external"],"secure":["secagg/1"],"features":{told}'
        body = f'{{"pending":[{pairs}],"capabilities":{{{can}}}}}'.encode()
        answer = await self.send("POST", "/v1/device/check-in", body)
        assert answer.is_success, answer.text
        return answer.json()

    async def task(self, seconds: float = 60) -> Task:
        """Check in until there is a task."""
        async with asyncio.timeout(patience(seconds)):
            while (found := (await self.check_in())["task"]) is None:
                await asyncio.sleep(0.02)
        return Task.model_validate(found)

    async def upload(
        self,
        task: Task,
        data: bytes,
        *,
        offset: int = 0,
        part: bytes | None = None,
        digest: str | None = None,
        query: str = "",
    ) -> httpx.Response:
        """Send an update, or a part of it."""
        whole = base64.b64encode(bytes.fromhex(digest or sha256(data))).decode()
        headers = {"Upload-Offset": str(offset), "Upload-Length": str(len(data)), "Repr-Digest": f"sha-256=:{whole}:"}
        path = f"/v1/device/tasks/{task.id}/update{query}"
        return await self.send("PATCH", path, data[offset:] if part is None else part, headers)


def update(
    task: Task,
    value: float = 1.0,
    *,
    weight: int = 10,
    delta: npt.NDArray[Any] | None = None,
    sums: Sequence[float] | None = None,
    plan: str | None = None,
    base: str | None = None,
    named: str | None = None,
    recipe: Recipe | None = None,
) -> bytes:
    """The update of a task: the same number everywhere, unless something else is asked for."""
    plan_of = (recipe or tiny()).manifest
    vector = np.full(plan_of.layout.size, value, np.float32) if delta is None else delta
    metrics = np.array(sums or (weight, 0.5 * weight, 0.75 * weight), np.float64)
    specs = plan_of.sections_for(task.kind)
    told = MetricSums.from_vector(plan_of.metrics, metrics)
    sections = {DELTA: vector, METRICS: metrics} if task.kind == "train" else evaluation_sections(plan_of, told)
    return encode_update(
        task=named or task.id,
        plan=plan or task.plan.id,
        base=base or task.model.sha256,
        weight=weight,
        steps=3,
        specs=specs,
        sections=sections,
    ).data


def planted(task: Task, value: float, at: int = 2, weight: int = 10) -> bytes:
    """An update with a number in it that an honest encoder would not write."""
    marker = np.float32(1234.5)
    delta = np.ones(SIZE, np.float32)
    delta[at] = marker
    return update(task, delta=delta, weight=weight).replace(marker.tobytes(), np.float32(value).tobytes())


Opener = Callable[..., AbstractAsyncContextManager[Operator]]
"""Opens a coordinator in this process; keyword arguments change its settings."""


@asynccontextmanager
async def in_process(settings: Settings, faults: CoordinatorFaults | None = None) -> AsyncGenerator[Operator, None]:
    """A coordinator in this process, spoken to over ASGI. Its transactions keep to the order of locks."""
    app = create_app(settings, faults=faults or CoordinatorFaults())
    with in_order():
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
                token = (Path(settings.folder) / "admin.token").read_text().strip()
                yield Operator(http, token, app)


async def fleet(operator: Operator, token: str, count: int) -> list[Device]:
    """Enrolled devices."""
    return [await Device(operator.http).enrol(token) for _ in range(count)]
