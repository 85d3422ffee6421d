"""What is left of an experiment that ended longer ago than the operator keeps, and what is not touched."""

import asyncio

from server_kit import Opener, Operator, fleet, update
from sqlalchemy import create_engine, text

from coterie.server.rounds import retention


async def trained(operator: Operator, token: str, rounds: int) -> str:
    """An experiment that ran to its end with two devices."""
    devices = await fleet(operator, token, 2)
    experiment = await operator.experiment(rounds=rounds, cohort=2)
    for number in range(rounds):
        for device in devices:
            task = await device.task()
            await device.upload(task, update(task, value=float(number + 1)))
    assert (await operator.finished(experiment))["reason"] == "completed"
    return experiment


def test_an_ended_experiment_keeps_its_record_and_three_versions(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            experiment = await trained(operator, token, 4)
            unused = await operator.put(b"no experiment begins with this yet", "model")
            before = [await operator.rounds(experiment), await operator.state(experiment)]
            models = await operator.models(experiment)
            here = operator.app.state.coordinator
            await retention.forget_old(here.storage.database, 1.0)
            assert await operator.models(experiment) == models, "a day is not over"
            await retention.forget_old(here.storage.database, 1e-9)
            assert [await operator.rounds(experiment), await operator.state(experiment)] == before
            kept = await operator.models(experiment)
            assert kept == [model for model in models if model["best"] or model in (models[0], models[-1])] != models
            engine = create_engine(f"sqlite:///{here.settings.folder / 'coterie.db'}")
            with engine.connect() as plain:
                for table in ("tasks", "participations", "attempts", "events"):
                    query = text(f"select count(*) from {table} where experiment = :name")
                    assert plain.execute(query, {"name": experiment}).scalar() == 0, table
            engine.dispose()
            running = await operator.experiment(rounds=3, cohort=1)
            (device,) = await fleet(operator, token, 1)
            task = await device.task()
            await device.upload(task, update(task))
            await operator.until_round(running, 1, "committed")
            used = await operator.models(running)
        async with coordinator(retention_days=1e-9) as operator:
            for model in kept + used:
                assert (await operator.http.get(f"/v1/blobs/{model['sha256']}")).status_code == 200
            gone = {model["sha256"] for model in models} - {model["sha256"] for model in kept + used}
            for sha256 in gone | {unused.sha256}:
                assert (await operator.http.get(f"/v1/blobs/{sha256}")).status_code == 404
            device.http = operator.http
            found = await device.task()
            assert (await device.upload(found, update(found))).status_code == 200
            await operator.until_round(running, 2, "committed")
        async with coordinator() as operator:
            assert await operator.models(experiment) == kept

    asyncio.run(work())
