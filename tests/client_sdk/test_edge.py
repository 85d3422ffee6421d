"""Real clients below an edge aggregator that the command line started: they train as anywhere else, and keep state for
what the root counted only.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import RESEARCHER, SCHEMA, Arrays, Coordinator, clean_environment, counting, experiment, rows

from coterie.aggregation.analytics import Query, ask, count, histogram, quantiles
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.scaffold import Scaffold
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.download import download
from coterie.client_sdk.control.submission import Submission, send
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.settings import AgentSettings
from coterie.errors import RemoteError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import read_file
from tests.patience import patience


@asynccontextmanager
async def edge_process(folder: Path, *options: str) -> AsyncGenerator[ControlClient, None]:
    """`coterie server --upstream …` on a free port, ended when this ends; its administrator's client."""
    command = [sys.executable, "-m", "coterie.cli.main", "server", "--port", "0", "--folder", str(folder), "--json"]
    quick = clean_environment(COTERIE_RETRY_FLOOR_S="0.02", COTERIE_RETRY_IDLE_S="0.02")
    with subprocess.Popen(
        [*command, "--stop-with-stdin", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quick
    ) as process:
        assert process.stdin and process.stdout
        ready = json.loads(await asyncio.to_thread(process.stdout.readline))
        control = ControlClient(ready["url"], token=Path(ready["admin_token_file"]).read_text().strip())
        try:
            yield control
        finally:
            await control.close()
            process.stdin.close()
            process.wait(patience(60))


async def joined(edge: ControlClient, population: str) -> None:
    """Wait until the edge aggregator has joined."""
    async with asyncio.timeout(patience(30)):
        while population not in [entry.name for entry in await edge.populations()]:
            await asyncio.sleep(0.05)


async def client(edge: ControlClient, population: str, folder: Path, data: Arrays) -> Agent:
    """A client of the edge aggregator with rows of its own."""
    token = (await edge.enrolment_token(population)).token
    return Agent(AgentSettings(url=edge.link.url, data=data, folder=folder, token=token))


async def assert_state_is_kept_for_what_the_root_counted(root: Coordinator, folder: Path) -> None:
    control = ControlClient(root.url, token=root.token)
    policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=1)
    wanted = experiment("wards", algorithm=counting(), rounds=policy, holdout=0.2)
    await control.ensure_population("wards", wanted.schema, signers=[RESEARCHER.public])
    token = (await control.edge_token("wards", max_clients=5)).token
    options = ("--upstream", root.url, "--upstream-token", token, "--edge-cohort", "2")
    async with edge_process(folder / "edge", *options) as edge:
        await joined(edge, "wards")
        agents = [await client(edge, "wards", folder / f"client{seed}", rows(30, seed)) for seed in (1, 2)]
        view = await send(control, Submission(experiment=wanted, key=RESEARCHER))
        await asyncio.gather(*(agent.run(rounds=3) for agent in agents))
        for agent in agents:
            assert (agent.summary.trained, agent.summary.counted, agent.summary.rolled_back) == (3, 3, 0)
            np.testing.assert_array_equal(agent.store.client_state(view.id)["counted"], [3.0])
            await agent.close()
        history = await control.history(view.id)
        losses = [record.metrics["loss"] for record in history.rounds]
        assert len(losses) == 3
        assert losses[-1] < losses[0]
        assert [view.kind for view in await control.devices("wards")] == ["edge"]
        with pytest.raises(RemoteError) as caught:
            await control.edge_token("wards", max_clients=1)
        assert caught.value.reason == "token_clients"
    await control.close()


def test_clients_below_an_edge_train_and_keep_state_for_what_the_root_counted(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    async def inside() -> None:
        async with asyncio.timeout(patience(100)):
            await assert_state_is_kept_for_what_the_root_counted(coordinator, tmp_path)

    asyncio.run(inside())


async def assert_queries_and_codecs_go_through(root: Coordinator, folder: Path) -> None:
    """Counts, histograms and quantiles over two clients below an edge aggregator and one beside it; then a method with
    variates whose uploads leave residuals.
    """
    control = ControlClient(root.url, token=root.token)
    parts = [rows(30 + 7 * seed, seed) for seed in range(3)]
    values, labels = np.concatenate([p["x"] for p in parts]).ravel(), np.concatenate([p["y"] for p in parts])
    await control.ensure_population("asked", SCHEMA, signers=[RESEARCHER.public])
    token = (await control.edge_token("asked", max_clients=5)).token
    options = ("--upstream", root.url, "--upstream-token", token, "--edge-cohort", "2")
    async with edge_process(folder / "edge", *options) as edge:
        await joined(edge, "asked")
        places = [(edge, 0), (edge, 1), (control, 2)]
        agents = [await client(to, "asked", folder / f"asked{n}", parts[n]) for to, n in places]

        async def ran(wanted: Experiment) -> str:
            view = await send(control, Submission(experiment=wanted, key=RESEARCHER, population="asked"))
            before = agents[0].summary.counted
            await asyncio.gather(*(agent.run(rounds=wanted.rounds.rounds) for agent in agents))
            assert [agent.summary.counted - before for agent in agents] == [wanted.rounds.rounds] * 3
            return view.id

        async def told(query: Query[Any]) -> Any:
            name = await ran(ask(query, SCHEMA, clients=2, name=query.rule.name))
            weights = await download(control, name, folder / f"{name}.safetensors", version="latest", form="weights")
            return query.answer(read_file(weights))

        assert (await told(count("y"))).rows == len(labels)
        classes = await told(histogram("y", low=0, high=3, bins=3))
        assert classes.counts.tolist() == np.bincount(labels, minlength=3).tolist()
        found = await told(quantiles("x", (0.25, 0.9), low=-10, high=10, rounds=2))
        assert found.values == values.size
        for quantile in found.quantiles:
            assert quantile.lower <= np.quantile(values, quantile.level, method="inverted_cdf") < quantile.upper

        policy = RoundPolicy(rounds=2, cohort=2, evaluate_every=0)
        coded = await ran(experiment("coded", algorithm=Scaffold(3), rounds=policy, codecs=("topk:0.2+ef",)))
        for agent in agents:
            state = agent.store.client_state(coded)
            assert any(name.startswith("codec/") and np.any(value) for name, value in state.items())
            assert any(not name.startswith("codec/") and np.any(value) for name, value in state.items())
            await agent.close()
    await control.close()


def test_queries_and_codecs_with_a_memory_go_through_a_tree(coordinator: Coordinator, tmp_path: Path) -> None:
    async def inside() -> None:
        async with asyncio.timeout(patience(250)):
            await assert_queries_and_codecs_go_through(coordinator, tmp_path)

    asyncio.run(inside())


def test_the_command_line_says_what_an_edge_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie.cli.main", "server", "--port", "0", "--folder", str(tmp_path / "edge")]
    done = subprocess.run(
        [*command, "--upstream", "http://127.0.0.1:1"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert done.returncode != 0
    assert "error[token_missing]" in done.stderr
    assert "--upstream-token" in done.stderr
