"""Lengths on real devices: under secure aggregation, over streams, through a kill, and not for an evaluation."""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import as_simulated
import numpy as np
import pytest
from as_simulated import assert_as_simulated
from length_kit import LENGTHS, LONGEST, SCHEMA, asked, assert_close, rows, trained, usual, widths_of_steps
from numpy.typing import NDArray
from sdk_kit import RESEARCHER, Coordinator, Lab, clean_environment, counting, run, save_rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.control.control import Control
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.faults import VARIABLE
from coterie.client_sdk.device.saved import UPLOAD
from coterie.client_sdk.device.settings import AgentSettings
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, Stopped, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.client_sdk.rows.loading import load_rows
from coterie.compute.data import ArraySource, Context, Dataset, Transform
from coterie.compute.nn.metrics import accuracy
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import decode_tensors
from coterie.simulation import simulate_full
from tests.patience import patience
from tests.prepared import start

CLIENTS = 5
SCRIPT = Path(__file__).parent / "client_process.py"


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each step that is taken."""
    return widths_of_steps(monkeypatch)


def short(data: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The rows, of which none is longer than 4."""
    x = data["x"].copy()
    x[:, 4:] = 0
    return {**data, "x": x}


# Secure aggregation.


def test_masked_updates_are_those_of_the_full_length(tmp_path: Path, widths: list[int]) -> None:
    """All of a device's rows are one batch: of four devices at 4 positions, of one at all 8."""
    wanted = asked(
        batch_size=64,
        epochs=3,
        optimizer=sgd(0.3),
        rounds=RoundPolicy(rounds=2, cohort=CLIENTS, evaluate_every=0),
        # The grid is as fine as the norm is small, and no update is longer than this one.
        secure_aggregation=SecureAggregation(dropout=0.2, norm=1.0),
    )
    clients = [rows(0), *(short(rows(number)) for number in range(1, CLIENTS))]
    found: dict[str, NDArray[Any]] = {}

    async def work(place: Lab) -> None:
        view = await place.submit(wanted)
        del widths[:]
        agents = [await place.agent("lengths", f"d{number}", data=data) for number, data in enumerate(clients)]
        await asyncio.gather(*(agent.run(rounds=2) for agent in agents))
        history = await place.control.history(view.id)
        assert [(record.state, record.accepted) for record in history.rounds] == [("committed", CLIENTS)] * 2
        assert [record.clipped for record in history.rounds] == [0.0] * 2
        assert all(entry.clients == CLIENTS for agent in agents for entry in agent.store.history())
        newest = (await place.control.models(view.id))[-1]
        found.update(decode_tensors(await place.control.blob(newest.sha256)))

    run(work, tmp_path)
    assert {length: widths.count(length) for length in set(widths)} == {4: 4 * 3 * 2, LONGEST: 3 * 2}
    whole = simulate_full(replace(wanted, lengths={}, secure_aggregation=False), clients).weights
    start = compile_plan(wanted).initial
    for name, value in whole.items():
        # What masks hide is rounded to a grid, at random.
        moved = np.abs(value - start[name]).max()
        np.testing.assert_allclose(found[name], value, atol=0.01 * moved, err_msg=name)


# Streams.


@dataclass(frozen=True)
class Cut(Transform):
    """Some first words of a text, others in each epoch."""

    def apply(self, value: Any, context: Context) -> Any:
        held = int((value != 0).sum())
        return np.where(np.arange(len(value)) < 1 + context.random.integer(held), value, 0).astype(value.dtype)


def test_rows_that_are_made_for_each_batch_decide_its_length(widths: list[int]) -> None:
    """Without chance a stream makes the bits of its arrays; with it, a batch is as long as its texts are this time."""
    held = Dataset.of(ArraySource(rows()))
    expected = trained(usual())
    of_arrays = widths[-expected.steps :]
    del widths[:]
    found = trained(usual(), data=load_rows(held, SCHEMA))
    assert widths[-found.steps :] == of_arrays and set(of_arrays) == {2, 4, LONGEST}
    assert found.sections["delta"].tobytes() == expected.sections["delta"].tobytes()
    streamed = load_rows(held.map(Cut(), "x"), SCHEMA)
    drawn = trained(asked(optimizer=sgd(0.3)), data=streamed, seed=8)
    first, second = widths[-drawn.steps : -drawn.steps // 2], widths[-drawn.steps // 2 :]
    assert sorted(first) != sorted(second) and sum(first + second) < sum(of_arrays)
    assert_close(drawn.sections, trained(asked(optimizer=sgd(0.3), lengths={}), data=streamed, seed=8).sections)


def test_devices_that_stream_take_short_steps_as_a_simulation_takes_long_ones(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widths: list[int]
) -> None:
    whole = as_simulated.simulate_full
    by_devices: list[int] = []

    def of_full_length(wanted: Experiment, *clients: Any) -> Any:
        by_devices.extend(widths)
        return whole(replace(wanted, lengths={}), *clients)

    monkeypatch.setattr(as_simulated, "simulate_full", of_full_length)
    wanted = asked(
        name="streamed lengths",
        batch_size=64,
        epochs=3,
        rounds=RoundPolicy(rounds=2, cohort=2, evaluate_every=0),
        evaluation=rows(9),
    )
    compile_plan(wanted)
    compiling = sorted(widths)
    del widths[:]
    clients: Any = [Dataset.of(ArraySource(short(rows(1)))), Dataset.of(ArraySource(rows(2))).map(same, "x")]
    assert_as_simulated(coordinator, tmp_path, wanted, clients, tolerance=1e-5)
    for width in compiling:
        by_devices.remove(width)
    # A device that is stopped in its next training takes some of its steps twice.
    assert {length for length in by_devices if by_devices.count(length) >= 3 * 2} == set(by_devices) == {4, LONGEST}


def same(value: Any) -> Any:
    return value


# Stops and kills.


def test_a_training_that_is_stopped_at_any_step_is_made_again_with_the_same_bits(widths: list[int]) -> None:
    """By the trainer that was stopped: what its steps of several lengths left in their one state does not matter."""
    compiled, trainer = usual(), PlanTrainer()
    task = LocalTask(experiment="lengths", round=1, seed=7)
    work = LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows())
    expected = PlanTrainer().train(work)
    lengths = widths[-expected.steps :]
    for last in range(1, expected.steps, 4):

        def stop(steps: int, last: int = last) -> None:
            if steps == last:
                raise Stopped()

        with pytest.raises(Stopped):
            trainer.train(replace(work, options=TrainOptions(on_step=stop)))
        assert widths[-last:] == lengths[:last]
        assert trainer.train(work).sections["delta"].tobytes() == expected.sections["delta"].tobytes()


def test_a_device_that_is_killed_amid_steps_of_several_lengths_sends_the_update_it_would_have_sent(
    coordinator: Coordinator, tmp_path: Path, widths: list[int]
) -> None:
    """Killed after twelve steps, started again, and killed before it sends: the update that lies there then is that of
    the same task in a process that nothing has stopped.
    """
    save_rows(tmp_path / "rows.npz", rows())
    wanted = asked(name="killed lengths", batch_size=2, algorithm=counting())
    with Control(coordinator.url, token=coordinator.token) as control:
        handle = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token("killed-lengths").token

        def client(fault: str) -> int:
            words = [coordinator.url, token, str(tmp_path / "device"), str(tmp_path / "rows.npz"), "1"]
            environment = clean_environment(**({VARIABLE: fault} if fault else {}))
            started = start(words, program=SCRIPT, cwd=tmp_path, env=environment)
            started.communicate(timeout=patience(60))
            return started.wait()

        assert client("training:12") == -signal.SIGKILL
        assert not (tmp_path / "device" / "updates").exists() or not [*(tmp_path / "device" / "updates").iterdir()]
        del widths[:]
        asyncio.run(dry_run(coordinator, tmp_path))
        assert len(widths) == 44 and len(set(widths[:12])) > 1
        assert client("uploading:1") == -signal.SIGKILL
        (stored,) = (tmp_path / "device" / "updates").iterdir()
        assert stored.read_bytes() == (tmp_path / "saved" / UPLOAD).read_bytes()
        assert client("") == 0
        (record,) = handle.wait(patience(60)).rounds
        assert (record.state, record.accepted) == ("committed", 1)


async def dry_run(coordinator: Coordinator, folder: Path) -> None:
    """The task that is in flight, done by this process and left as it is."""
    agent = Agent(AgentSettings(url=coordinator.url, data=rows(), folder=folder / "device"))
    try:
        await agent.dry_run(folder / "saved")
    finally:
        await agent.close()


# Evaluations.


def test_an_evaluation_fetches_no_file_of_a_length(tmp_path: Path) -> None:
    """One device only evaluates and one trains too, by the same plan."""
    wanted = asked(metrics={"accuracy": accuracy}, holdout=0.3)
    measures = replace(wanted, rounds=RoundPolicy(rounds=1, cohort=1, purpose="evaluate", evaluate_every=1))
    trains = replace(wanted, name="trains", rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0))

    async def work(place: Lab) -> None:
        for number, each in enumerate((measures, trains)):
            view = await place.submit(each)
            stage = compile_plan(each).plan.manifest.stage("train")
            assert len(stage.lengths) == len(LENGTHS["x"])
            agent = await place.agent(each.name, f"d{number}", data=rows())
            working = asyncio.ensure_future(agent.run())
            while (await place.control.experiment(view.id)).state != "finished":
                await asyncio.sleep(0.05)
            agent.stop()
            await working
            held = {path.name for path in (place.folder / f"d{number}" / "cache").iterdir()}
            of_lengths = {length.sha256 for length in stage.lengths}
            assert stage.sha256 in held
            assert of_lengths & held == (of_lengths if each is trains else set())
            history = await place.control.history(view.id)
            assert bool(history.curve("accuracy")) == (each is measures)

    run(work, tmp_path)
