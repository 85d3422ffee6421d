"""The researcher's client against a real coordinator process, with devices in threads of this one."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sdk_kit import RESEARCHER, SCHEMA, Coordinator, at_work, experiment, infer, rows

from coterie.client_sdk import Control, Device, submit
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.download import choose
from coterie.client_sdk.control.sse import Message, messages
from coterie.client_sdk.control.submission import slug
from coterie.errors import ConfigurationError, ExperimentError, NotFound, RemoteError, Unreachable
from coterie.protocol.control import ModelView
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.tensors import read_file
from tests.patience import patience


@contextmanager
def devices(
    coordinator: Coordinator, population: str, folder: Path, count: int = 2
) -> Generator[list[Device], None, None]:
    """Devices that work in threads until the block ends."""
    with Control(coordinator.url, token=coordinator.token) as control:
        token = control.enrolment_token(population).token
    made = [
        Device(coordinator.url, data=rows(60, seed), folder=folder / f"d{seed}", token=token) for seed in range(count)
    ]
    with at_work(made):
        yield made


def test_from_submit_to_a_file_that_plain_onnxruntime_runs(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RoundPolicy(rounds=3, cohort=2, evaluate_every=1)
    wanted = experiment("whole story", rounds=policy, epochs=4, infer_batch=60)
    run = submit(wanted, coordinator.url, token=coordinator.token, key=tmp_path / "keys" / "researcher.key")
    assert (tmp_path / "keys" / "researcher.key").stat().st_mode & 0o077 == 0
    with devices(coordinator, "whole-story", tmp_path):
        events = list(run.watch())
        history = run.wait(patience(30))
    assert [event.type for event in events].count("round.committed") == 3
    assert events[-1].type == "experiment.finished" and [e.id for e in events] == sorted({e.id for e in events})
    assert [(r.round, r.state, r.accepted) for r in history.rounds] == [(n, "committed", 2) for n in (1, 2, 3)]
    assert history.reason == "completed" and history.best == run.view().best
    models = run.models()
    assert [model.round for model in models] == [0, 1, 2, 3]
    assert [model.parent for model in models[1:]] == [model.sha256 for model in models[:-1]]
    weights = run.download(tmp_path / "weights.safetensors", version="latest", form="weights")
    assert sum(tensor.size for tensor in read_file(weights).values()) == 67
    mean = read_file(run.download(tmp_path / "mean.safetensors", version="average(2)", form="weights"))
    parts = [read_file(run.download(tmp_path / number, version=number, form="weights")) for number in ("2", "3")]
    for name, value in mean.items():
        np.testing.assert_allclose(value, (parts[0][name] + parts[1][name]) / 2, rtol=1e-5, atol=1e-7)
    path = run.download(tmp_path / "new" / "infer.onnx", version=str(models[-1].round))
    fresh = rows(60, 99)
    answers = infer(path, {"batch/x": fresh["x"]})
    assert float((answers.argmax(1) == fresh["y"]).mean()) > 0.85
    # As for a model above 2 GiB, which no one file can hold.
    monkeypatch.setattr("coterie.compute.onnx.weights.MESSAGE_BYTES", 64)
    two = run.download(tmp_path / "two" / "infer.onnx", version=str(models[-1].round))
    assert sorted(file.suffix for file in two.parent.iterdir()) == [".bin", ".onnx"]
    assert np.array_equal(infer(two, {"batch/x": fresh["x"]}), answers)
    run.control.close()


def test_watching_goes_on_after_the_last_event_seen(coordinator: Coordinator, tmp_path: Path) -> None:
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(experiment("resumed watch"), key=RESEARCHER)
        with devices(coordinator, "resumed-watch", tmp_path, 1):
            everything = list(run.watch())
        half = len(everything) // 2
        rest = list(run.watch(after=str(everything[half - 1].id)))
        assert [event.id for event in rest] == [event.id for event in everything[half:]]
        assert list(run.watch(after=str(everything[-1].id))) == []
        assert control.run("resumed watch").id == run.id and control.run(run.id[:20]).name == "resumed watch"


def test_a_broken_event_stream_is_taken_up_where_it_broke() -> None:
    """The other side sends three events per connection and drops it; nobody loses or repeats one."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(503, json={"code": "closing"})
        asked.append(request.headers.get("Last-Event-ID", ""))
        first = int(asked[-1] or 0) + 1
        kinds = {9: "experiment.finished"}
        lines = [
            f'id: {n}\nevent: x\ndata: {{"id": {n}, "type": "{kinds.get(n, "x")}", "data": {{}}}}\n\n: heartbeat\n\n'
            for n in range(first, min(first + 3, 10))
        ]
        return httpx.Response(200, content="".join(lines))

    async def work() -> list[int]:
        client = ControlClient("http://coordinator", token="t", transport=httpx.MockTransport(answer))
        async with asyncio.timeout(patience(60)):
            seen = [event.id async for event in client.events("exp")]
        await client.close()
        return seen

    assert asyncio.run(work()) == list(range(1, 10))
    assert asked == ["", "3", "6"]


def test_stopping_ends_the_wait(coordinator: Coordinator) -> None:
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(experiment("to be stopped"), key=RESEARCHER)
        with pytest.raises(Unreachable) as caught:
            run.wait(0.3)
        assert caught.value.reason == "timeout"
        run.stop()
        history = run.wait(patience(60))
        assert history.reason == "stopped" and history.rounds[0].cause == "stopped"


def test_a_population_keeps_its_schema(coordinator: Coordinator) -> None:
    with Control(coordinator.url, token=coordinator.token) as control:
        made = control.ensure_population("fixed", SCHEMA)
        again = control.ensure_population("fixed", SCHEMA, signers=(RESEARCHER.public,))
        assert again.schema_digest == made.schema_digest and again.signers == (RESEARCHER.public,)
        other = DataSchema((Feature(name="z"),), Label(name="y", low=0, high=2))
        with pytest.raises(ExperimentError) as caught:
            control.ensure_population("fixed", other)
        assert caught.value.reason == "population_schema"


def test_what_the_coordinator_refuses_comes_with_its_code(coordinator: Coordinator) -> None:
    with (
        Control(coordinator.url, token="coterie_admin_nobody_nothing") as control,
        pytest.raises(RemoteError) as caught,
    ):
        control.populations()
    assert caught.value.reason == "unauthenticated" and caught.value.details["http_status"] == 401
    with Control(coordinator.url, token=coordinator.token) as control:
        with pytest.raises(RemoteError) as caught:
            control.run("no such experiment")
        assert caught.value.details["http_status"] == 404
        control.ensure_population("refused", SCHEMA)
        token = control.enrolment_token("refused", uses=3, ttl_s=60)
        assert token.token.startswith("coterie_enrol_") and token.token not in repr(token)
    with Control("http://127.0.0.1:9", token="t") as control, pytest.raises(Unreachable):
        control.populations()


def test_the_version_that_a_name_means() -> None:
    def model(round: int, sha256: str) -> ModelView:
        return ModelView.model_validate({"sha256": sha256, "experiment": "exp_" + "0" * 32, "round": round, "size": 1})

    models = [model(0, "ab" * 32), model(1, "abababcd" * 8), model(2, "cd" * 32)]
    assert [found.round for found in choose(models, "latest", None)] == [2]
    assert [found.round for found in choose(models, "best", "abababcd" * 8)] == [1]
    assert [found.round for found in choose(models, "best", None)] == [2]
    assert [found.round for found in choose(models, "0", None)] == [0]
    assert [found.round for found in choose(models, "cdcdcd", None)] == [2]
    assert [found.round for found in choose(models, "average(2)", None)] == [1, 2]
    # As `average_last` of a simulation: what a run began with is none of what it made.
    assert [found.round for found in choose(models, "average(9)", None)] == [1, 2]
    assert [found.round for found in choose(models[:1], "average(9)", None)] == [0]
    for version in ("ababab", "7", "abc", "newest", "average(0)", "average()"):
        with pytest.raises(NotFound, match="best, latest"):
            choose(models, version, None)


def test_an_unknown_form_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(experiment("forms"), key=RESEARCHER)
        with pytest.raises(ConfigurationError, match="infer, weights"):
            run.download(tmp_path / "x", form="torch")  # pyright: ignore[reportArgumentType]
        run.stop()


@pytest.mark.parametrize(("name", "expected"), [("Digits", "digits"), ("My CNN / 2!", "my-cnn-2"), ("ä-1", "1")])
def test_a_populations_name_made_from_an_experiments(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_a_name_of_which_nothing_can_be_used_is_refused() -> None:
    with pytest.raises(ExperimentError):
        slug("äöü")


async def _pieces(text: str, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(text), size):
        yield text[start : start + size].encode()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_server_sent_events_are_read_as_the_standard_says(size: int, end: str) -> None:
    text = ": comment\nid: 1\nevent: a\ndata: one\ndata:two\n\nretry: 5\n\ndata\n\nid: 2\ndata: x\n\ndata: cut off"

    async def read() -> list[Any]:
        return [message async for message in messages(_pieces(text.replace("\n", end), size))]

    assert asyncio.run(read()) == [
        Message("1", "a", "one\ntwo"),
        Message("1", "message", ""),
        Message("2", "message", "x"),
    ]


def test_the_facade_works_inside_a_running_loop(coordinator: Coordinator) -> None:
    async def notebook() -> list[str]:
        with Control(coordinator.url, token=coordinator.token) as control:
            control.ensure_population("notebook", SCHEMA)
            return [population.name for population in control.populations()]

    assert "notebook" in asyncio.run(notebook())
