"""Compressed updates over HTTP: every kind of codec, and error feedback that counts with its update or not at all."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from sdk_kit import Lab, experiment, run

from coterie.compute.nn.zoo import mlp
from coterie.errors import ExperimentError
from coterie.protocol.rounds import RoundPolicy
from tests.held_clock import held

KINDS = ("topk:0.1+ef", "qsgd:4+rice", "eden:4", "rotate+grid:8:1", "powersgd:2+ef", "diff_sparse_quant")


@pytest.mark.parametrize("codec", KINDS)
def test_a_round_is_committed_with_every_kind_of_codec(codec: str, tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=2, cohort=1, evaluate_every=0)
        model = mlp((4, 24, 16, 3))
        view = await place.submit(experiment("kinds", model=model, rounds=policy, codecs=(codec, "float32")))
        agent = await place.agent("kinds")
        assert (await agent.run(rounds=2)).counted == 2
        history = (await place.control.history(view.id)).rounds
        assert [record.state for record in history] == ["committed", "committed"]
        sizes = [entry.bytes_up for entry in agent.store.history()]
        if codec in ("topk:0.1+ef", "eden:4", "qsgd:4+rice"):
            assert max(sizes) < 4 * model.count() / 2 + 900

    run(work, tmp_path)


def test_an_error_counts_with_its_update(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=2, cohort=1, evaluate_every=0)
        view = await place.submit(experiment("kept", rounds=policy, codecs=("topk:0.1+ef",)))
        agent = await place.agent("kept")
        assert (await agent.run(rounds=2)).counted == 2
        state = agent.store.client_state(view.id)
        assert set(state) == {"codec/delta/residual", "codec/round"}
        assert state["codec/round"].tolist() == [2] and np.count_nonzero(state["codec/delta/residual"]) > 0

    run(work, tmp_path)


def test_a_second_run_goes_on_with_the_error_that_the_first_left(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=0)
        view = await place.submit(experiment("twice", rounds=policy, codecs=("topk:0.1+ef",)))
        agent = await place.agent("twice")
        for rounds in (1, 2, 3):
            # The summary is the agent's, over all of its runs; each run waits for an update of its own.
            assert (await agent.run(rounds=1)).counted == rounds
            assert agent.store.client_state(view.id)["codec/round"].tolist() == [rounds]

    run(work, tmp_path)


def test_an_error_whose_round_was_abandoned_is_forgotten(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=2, min_updates=2, deadline_s=1.0, evaluate_every=0)
        # A device that is late gives its task up, and nothing is left to settle: the deadline waits for it.
        with held():
            view = await place.submit(experiment("lonely", rounds=policy, codecs=("topk:0.1+ef",)))
            agent = await place.agent("lonely")
            running = asyncio.create_task(agent.run(rounds=1))
            while not (await place.control.rounds(view.id))[0].accepted:
                await asyncio.sleep(0.02)
        summary = await running
        assert (summary.counted, summary.rolled_back) == (0, 1)
        assert agent.store.client_state(view.id) == {}

    run(work, tmp_path)


def test_a_dry_run_shows_what_each_section_takes(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("dry", model=mlp((4, 64, 64, 3)), codecs=("eden:4",)))
        shown = await (await place.agent("dry")).dry_run()
        delta, metrics = shown.sections
        assert (delta.codec, metrics.codec) == ("eden:4", "float32")
        assert delta.bytes < delta.values / 2 + 64

    run(work, tmp_path)


def test_what_is_no_codec_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ExperimentError, match="topk takes a fraction above 0"):
        experiment("wrong", codecs=("topk:2",))
