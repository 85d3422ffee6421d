"""Populations whose devices keep nothing: what needs client state is refused there, with the reason."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from server_kit import RESEARCHER, SCHEMA, Opener, Operator, Recipe, policy

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Scaffold
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.conversion import to_json


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


def scaffold() -> Recipe:
    """A plan whose clients keep control variates."""
    experiment = Experiment(
        name="scaffold", model=mlp((2, 2)), schema=SCHEMA, rounds=policy(), loss=softmax_cross_entropy,
        optimizer=sgd(0.1), algorithm=Scaffold(clients=10),
    )  # fmt: skip
    compiled = compile_plan(experiment)
    return Recipe(compiled.plan.manifest, compiled.plan.graphs, compiled.initial_bytes)


async def population(operator: Operator, name: str, client_state: str) -> Any:
    """Make a population, or try to."""
    body = {"name": name, "data_schema": to_json(SCHEMA), "signers": [RESEARCHER.public]}
    return await operator.call("POST", "/v1/populations", json={**body, "client_state": client_state})


async def asked(operator: Operator, name: str, recipe: Recipe | None, *codecs: str) -> tuple[int, str | None, str]:
    """Status, code and words of the answer to an experiment over a population."""
    request = await operator.request(name, recipe)
    body = {**request.model_dump(mode="json"), "codecs": codecs or ("float32",)}
    answer = await operator.call("POST", "/v1/experiments", json=body)
    return answer.status_code, answer.json().get("code"), answer.json().get("detail", "")


def test_a_population_that_keeps_nothing_refuses_what_needs_client_state(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            made = await population(operator, "passers-by", "none")
            assert (made.status_code, made.json()["client_state"]) == (201, "none")
            status, code, words = await asked(operator, "passers-by", scaffold())
            assert (status, code) == (422, "stateless_population") and "method scaffold" in words
            status, code, words = await asked(operator, "passers-by", None, "topk:0.01+ef", "float32")
            assert (status, code) == (422, "stateless_population") and "codec topk:0.01+ef" in words
            assert (await asked(operator, "passers-by", None))[0] == 201
            assert (await population(operator, "residents", "kept")).status_code == 201
            assert (await asked(operator, "residents", scaffold()))[0] == 201

    run(work())


def test_whether_devices_keep_state_never_changes(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            assert (await population(operator, "people", "none")).status_code == 201
            assert (await population(operator, "people", "none")).status_code == 200
            again = await population(operator, "people", "kept")
            assert (again.status_code, again.json()["code"]) == (409, "population_exists")

    run(work())
