"""The control plane: created once, checked whole, listed in pages, told as events, written down in the audit trail."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from server_kit import RESEARCHER, SCHEMA, Device, Opener, Operator, fleet, measured, once, tiny, update

from coterie.aggregation.plan.manifest import NamedRule
from coterie.protocol.audit import AuditEntry, first_fault
from coterie.protocol.conversion import to_json
from coterie.protocol.device import Problem
from coterie.protocol.schema import Label
from coterie.protocol.signing import SigningKey, sign_plan
from coterie.protocol.tensors import encode_tensors
from coterie.server.store import audit
from coterie.server.store.tables import AuditRow


def with_operator(coordinator: Opener, check: Callable[[Operator], Awaitable[None]], **changes: object) -> None:
    """Run a check against a fresh coordinator."""

    async def work() -> None:
        async with coordinator(**changes) as operator:
            await check(operator)

    asyncio.run(work())


def test_the_same_creating_request_again_creates_nothing(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.population()
        request = (await operator.request()).model_dump(mode="json")
        key = once()
        first = await operator.call("POST", "/v1/experiments", json=request, headers=key)
        again = await operator.call("POST", "/v1/experiments", json=request, headers=key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["id"] == again.json()["id"] and again.headers["Idempotent-Replay"] == "true"
        other = await operator.call("POST", "/v1/experiments", json={**request, "name": "other"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        assert len((await operator.ok("GET", "/v1/experiments"))["items"]) == 1

    with_operator(coordinator, check)


def test_a_repeated_token_request_gives_the_same_token_a_new_secret(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        key = once()
        first = await operator.ok("POST", "/v1/tokens", json={"kind": "admin"}, headers=key)
        again = await operator.ok("POST", "/v1/tokens", json={"kind": "admin"}, headers=key)
        assert first["id"] == again["id"] and first["token"] != again["token"]
        assert (await Operator(operator.http, first["token"]).call("GET", "/v1/tokens")).status_code == 401
        listed = await Operator(operator.http, again["token"]).ok("GET", "/v1/tokens")
        assert len(listed["items"]) == 2
        secret = again["token"].rsplit("_", 1)[1]
        assert secret not in json.dumps(listed)

    with_operator(coordinator, check)


def test_an_enrolment_token_enrols_as_often_as_it_says(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.population()
        made = await operator.ok("POST", "/v1/tokens", json={"kind": "enrol", "population": "people", "uses": 1})
        device = await Device(operator.http).enrol(made["token"])
        assert (await Device(operator.http, device.key).enrol(made["token"])).id == device.id
        with pytest.raises(AssertionError, match="token_used_up"):
            await Device(operator.http).enrol(made["token"])
        (view,) = (await operator.ok("GET", "/v1/devices"))["items"]
        assert (view["id"], view["population"], view["state"]) == (device.id, "people", "active")

    with_operator(coordinator, check)


def test_a_schema_never_changes(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.population()
        body: dict[str, Any] = {"name": "people", "data_schema": to_json(SCHEMA)}
        assert (await operator.call("POST", "/v1/populations", json=body)).status_code == 200
        body["data_schema"]["label"]["high"] = 9
        changed = await operator.call("POST", "/v1/populations", json=body)
        assert (changed.status_code, changed.json()["code"]) == (409, "population_exists")

    with_operator(coordinator, check)


async def refusal(operator: Operator, request: dict[str, Any]) -> str:
    """The code with which an experiment is refused."""
    answer = await operator.call("POST", "/v1/experiments", json=request)
    assert answer.status_code in (403, 404, 409, 422), answer.text
    assert answer.json()["detail"]
    return answer.json()["code"]


def test_an_experiment_that_cannot_run_is_never_created(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.population()
        good = (await operator.request()).model_dump(mode="json")
        plan = good["plan"]
        stranger = SigningKey.generate()
        other = {"id": plan["id"], "signature": sign_plan(stranger, plan["id"]), "signer": stranger.public}
        forged = {**plan, "signature": sign_plan(stranger, plan["id"])}
        rows = (await operator.put(b"not tensors", "evaluation")).model_dump()
        nan = encode_tensors({"w": np.array([1, np.nan, 3], np.float32), "b": np.zeros(1, np.float32)})
        poisoned = (await operator.put(nan, "model")).model_dump()
        wrong = encode_tensors({"w": np.zeros((2, 2), np.float32), "b": np.zeros(1, np.float32)})
        misshapen = (await operator.put(wrong, "model")).model_dump()

        def signed(digest: str) -> dict[str, Any]:
            return {**plan, "id": digest, "signature": sign_plan(RESEARCHER, digest)}

        async def named(name: str, parameters: dict[str, float]) -> str:
            wanted = replace(tiny().manifest, algorithm=NamedRule(name, parameters))
            return (await operator.put(wanted.data, "plan")).sha256

        missing = signed("0" * 64)
        cases: dict[str, tuple[dict[str, Any], str]] = {
            "population": ({"population": "nobody"}, "population_unknown"),
            "signer": ({"plan": other}, "signer_not_allowed"),
            "signature": ({"plan": forged}, "plan_signature"),
            "blob": ({"plan": missing}, "blob_missing"),
            "size": ({"initial": {**good["initial"], "size": 1}}, "blob_size"),
            "NaN": ({"initial": poisoned}, "not_finite"),
            "server rule": ({"server": {"name": "magic", "parameters": {}}}, "server_optimizer"),
            "codec": ({"codecs": ["zip"]}, "unknown_codec"),
            "hyper": ({"hyper": {"none": 1.0}}, "unknown_hyper"),
            "evaluation": ({"evaluation": rows}, "evaluation_unsupported"),
            "metric": ({"rounds": {**good["rounds"], "best": {"metric": "auc", "mode": "max"}}}, "unknown_metric"),
            "form": ({"rounds": {**good["rounds"], "cohort": 0}}, "request_invalid"),
            "method": ({"plan": signed(await named("mine", {}))}, "unknown_algorithm"),
            "its numbers": ({"plan": signed(await named("scaffold", {"clients": 0.0}))}, "algorithm_parameter"),
            "its sections": ({"plan": signed(await named("scaffold", {"clients": 2.0}))}, "algorithm_sections"),
            "field": ({"more": 1}, "request_invalid"),
        }
        for name, (change, code) in cases.items():
            assert await refusal(operator, {**good, **change}) == code, name
        assert await refusal(operator, {**good, "initial": misshapen}) not in ("internal", "")
        assert (await operator.ok("GET", "/v1/experiments"))["items"] == []

    with_operator(coordinator, check)


def test_central_evaluation_and_best_version(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        (device,) = await fleet(operator, await operator.population(), 1)
        recipe = measured()
        experiment = await operator.experiment(
            recipe=recipe, rounds=2, cohort=1, best={"metric": "loss", "mode": "min"}
        )
        size = recipe.manifest.layout.size
        # The rows are all of class 0: a push of its bias helps, and one the other way harms.
        for push in (1.0, -3.0):
            delta = np.zeros(size, np.float32)
            start, _ = recipe.manifest.layout.slices["0.bias"]
            delta[start], delta[start + 1] = push, -push
            task = await device.task()
            assert (await device.upload(task, update(task, delta=delta, recipe=recipe))).status_code == 200
        view = await operator.finished(experiment)
        first, second = await operator.rounds(experiment)
        assert first["evaluation"] == second["evaluation"] == "central"
        assert first["metrics"]["loss"] < second["metrics"]["loss"]
        models = await operator.models(experiment)
        assert [model["best"] for model in models] == [False, True, False]
        assert view["best"] == models[1]["sha256"] != view["latest"] == models[2]["sha256"]
        one = await operator.ok("GET", f"/v1/models/{view['best']}")
        assert one["metrics"] == first["metrics"] and one["parent"] == models[0]["sha256"]

    with_operator(coordinator, check)


def test_a_metric_of_all_evaluation_rows_picks_the_best_version(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        (device,) = await fleet(operator, await operator.population(), 1)
        rows = {"x": np.array([[1, 0], [-1, 0], [2, 0]], np.float32), "y": np.array([1, 0, 1], np.int32)}
        recipe = replace(measured(), evaluation=encode_tensors(rows))
        request = await operator.request(recipe=recipe, rounds=2, cohort=1, best={"metric": "auc", "mode": "max"})
        asked = request.model_copy(update={"evaluation_metrics": ("auc",)}).model_dump(mode="json")
        for change in ({"evaluation_metrics": ["magic"]}, {"evaluation_metrics": ["auc", "auc"]}):
            assert await refusal(operator, {**asked, **change}) == "unknown_metric"
        assert await refusal(operator, {**asked, "evaluation": None}) == "evaluation_unsupported"
        experiment = (await operator.ok("POST", "/v1/experiments", json=asked, headers=once()))["id"]
        start, stop = recipe.manifest.layout.slices["0.weight"]
        for push in (9.0, -99.0):
            delta = np.zeros(recipe.manifest.layout.size, np.float32)
            # The first number of a row makes class 1 likelier, and then less likely.
            delta[start:stop] = np.array([-push, push, push, 0])
            task = await device.task()
            assert (await device.upload(task, update(task, delta=delta, recipe=recipe))).status_code == 200
        view = await operator.finished(experiment)
        assert [entry["metrics"]["auc"] for entry in await operator.rounds(experiment)] == [1.0, 0.0]
        assert view["best"] == (await operator.models(experiment))[1]["sha256"] != view["latest"]

    with_operator(coordinator, check)


def test_pages_hold_everything_once(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        devices = await fleet(operator, await operator.population(), 7)
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await operator.ok("GET", "/v1/devices", params={"limit": 3, **cursor})
            found += [item["id"] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == sorted(device.id for device in devices)
        bad = await operator.call("GET", "/v1/devices", params={"cursor": "!"})
        assert (bad.status_code, bad.json()["code"]) == (422, "cursor_invalid")

    with_operator(coordinator, check)


def test_the_audit_trail_is_a_chain_that_shows_tampering(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.population()
        experiment = await operator.experiment()
        await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
        items = (await operator.ok("GET", "/v1/audit"))["items"]
        actions = [item["action"] for item in items]
        assert {
            "token.created",
            "population.created",
            "signer.allowed",
            "experiment.created",
            "experiment.stopped",
        } <= set(actions)
        assert operator.token.rsplit("_", 1)[1] not in json.dumps(items)
        assert first_fault([AuditEntry.model_validate(item) for item in items]) is None
        database = operator.app.state.coordinator.storage.database
        async with database.write("sweep") as session:
            entry = await session.get(AuditRow, items[2]["id"])
            entry.target = "somebody else"
        items = (await operator.ok("GET", "/v1/audit"))["items"]
        fault = first_fault([AuditEntry.model_validate(item) for item in items])
        assert fault == (3, "its digest does not match its content: it was changed")

    with_operator(coordinator, check)


def test_stop_ends_the_open_round_by_name_and_is_idempotent(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        (device,) = await fleet(operator, await operator.population(), 1)
        experiment = await operator.experiment()
        task = await device.task()
        for _ in range(2):
            answer = await operator.call("POST", f"/v1/experiments/{experiment}/stop")
            assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (202, "stopped", "stopped")
        (entry,) = await operator.rounds(experiment)
        assert (entry["state"], entry["cause"]) == ("abandoned", "stopped")
        assert (await device.check_in())["task"] is None
        assert (await device.upload(task, update(task))).json()["code"] == "round_closed"

    with_operator(coordinator, check)


def test_an_experiment_answers_to_its_name_and_the_beginning_of_its_id(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.population()
        first = await operator.experiment()
        assert (await operator.state("tiny"))["id"] == (await operator.state(first[:30]))["id"] == first
        await operator.experiment()
        ambiguous = await operator.call("GET", "/v1/experiments/tiny")
        assert (ambiguous.status_code, ambiguous.json()["code"]) == (409, "experiment_ambiguous")
        unknown = await operator.call("GET", "/v1/experiments/exp_none")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "experiment_unknown")

    with_operator(coordinator, check)


def test_errors_are_problem_documents(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        for method, path, status, code in (
            ("GET", "/v1/nothing", 404, "not_found"),
            ("PATCH", "/v1/populations", 405, "method_not_allowed"),
            ("POST", "/v1/populations", 422, "request_invalid"),
        ):
            answer = await operator.call(method, path, json={"name": 3})
            body = answer.json()
            assert (answer.status_code, body["status"], body["code"]) == (status, status, code)
            assert answer.headers["Content-Type"] == "application/problem+json"
            # What is sent is what the description says, and every field of it that is sent always is described.
            assert set(body) - set(Problem.model_fields) == set() and body["instance"] == path
            assert {"type", "title", "detail", "instance", "hint", "doc", "trace_id"} <= set(body)
            assert body["trace_id"] == answer.headers["Coterie-Trace"]
        long = await operator.call("POST", "/v1/populations", content=b" " * (1 << 21))
        assert (long.status_code, long.json()["code"]) == (413, "too_large")

    with_operator(coordinator, check)


def test_an_unexpected_error_tells_a_trace_id_and_nothing_else(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(operator: Operator) -> None:
        async def broken(*_: object) -> None:
            raise RuntimeError("the secret of the house")

        monkeypatch.setattr(audit, "page", broken)
        answer = await operator.call("GET", "/v1/audit")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "secret" not in answer.text and answer.json()["trace_id"]

    with_operator(coordinator, check)


def cursor(text: str) -> str:
    """A cursor that no page gave."""
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("text", ["9" * 30, "--5", "-1", "٣", "²", ""])
def test_a_made_up_number_is_no_cursor(text: str, coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        answer = await operator.call("GET", "/v1/audit", params={"cursor": cursor(text)})
        assert (answer.status_code, answer.json()["code"]) == (422, "cursor_invalid")

    with_operator(coordinator, check)


def test_an_event_number_that_no_stream_sent_is_refused_before_the_stream_begins(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        for last in ("9" * 31, "-1", "x", ""):
            answer = await operator.call("GET", "/v1/events", headers={"Last-Event-ID": last})
            assert (answer.status_code, answer.json()["code"]) == (422, "cursor_invalid")
        answer = await operator.call("GET", "/v1/events", params={"after": "9" * 31})
        assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")

    with_operator(coordinator, check)


def test_faults_of_a_body_are_told_in_plain_sentences(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        label = to_json(Label(name="y", low=0, high=2))
        asked: dict[str, Any] = {"name": "clinics", "data_schema": {"features": [], "label": label}}
        answer = await operator.call("POST", "/v1/populations", json=asked)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "request_invalid")
        assert problem["errors"] == [
            {"pointer": "/body/data_schema", "detail": "In the data schema: it needs 1 to 1000 features"}
        ]
        assert problem["detail"].endswith("/body/data_schema: In the data schema: it needs 1 to 1000 features.")

    with_operator(coordinator, check)


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"name":' + b"9" * 5000 + b"}", b'{"name":"\xff"}'])
def test_a_body_that_is_no_sensible_json_is_told_so(body: bytes, coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        headers = {"Content-Type": "application/json"}
        answer = await operator.call("POST", "/v1/populations", content=body, headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (400, "request_invalid")
        assert "JSON" in problem["detail"] and problem["hint"]

    with_operator(coordinator, check)


def test_no_stranger_fills_the_memory_or_the_answer(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        for number in range(20):
            await operator.http.request(f"METHOD{number}", "/nothing")
        text = (await operator.http.get("/metrics")).text
        assert "METHOD" not in text and 'method="other",route="unmatched",status="404"} 20.0' in text
        answer = await operator.http.get("/" + "a" * 20_000)
        assert answer.status_code == 404 and len(answer.content) < 2000

    with_operator(coordinator, check)


def test_health_metrics_and_documentation(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        assert (await operator.http.get("/healthz")).json() == {"status": "ok"}
        assert (await operator.http.get("/readyz")).json() == {"status": "ready"}
        text = (await operator.http.get("/metrics")).text
        assert 'coterie_requests_total{method="GET",route="/healthz",status="200"} 1.0' in text
        page = (await operator.http.get("/docs")).text
        assert "/v1/openapi.json" in page and "http://" not in page and "https://" not in page and "//cdn" not in page
        api = (await operator.http.get("/v1/openapi.json")).json()
        operations = [operation for path in api["paths"].values() for operation in path.values()]
        names = [operation["operationId"] for operation in operations]
        assert len(set(names)) == len(names) and api["openapi"].startswith("3.1")
        assert all(
            "application/problem+json" in operation["responses"]["default"]["content"] for operation in operations
        )

    with_operator(coordinator, check)
