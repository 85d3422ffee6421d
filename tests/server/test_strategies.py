"""A plan says what it does as one versioned list; who ran what, and who changed which policy, stands in the trail."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from server_kit import RESEARCHER, SCHEMA, Opener, Operator, Recipe, policy, tiny

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.fedavg import FedAvg
from coterie.aggregation.horizontal.fedprox import FedProx
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.compile import compile_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.plan.strategies import strategies
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adam
from coterie.errors import PlanRefused
from coterie.privacy.dp.privacy import ExampleLevel
from coterie.protocol.canonical import canonical_json


def wanted(**changes: Any) -> Experiment:
    return replace(
        Experiment(
            name="many",
            model=mlp((2, 4, 2)),
            schema=SCHEMA,
            rounds=policy(),
            loss=softmax_cross_entropy,
            optimizer=adam(0.01),
            algorithm=FedProx(0.25),
            batch_size=8,
            epochs=3,
            codecs=("topk:0.5+ef", "int8", "float32"),
            broadcast="int8",
            uploads=("2.*",),
        ),
        **changes,
    )


def by_kind(manifest: Manifest) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for one in strategies(manifest):
        found.setdefault(one["kind"], []).append((one["name"], one["parameters"]))
    return found


@pytest.mark.capability("G18")
def test_a_plan_names_every_strategy_that_it_combines() -> None:
    compiled = compile_plan(wanted())
    found = by_kind(compiled.plan.manifest)
    assert found["training"] == [("plan", {"batch_size": 8, "epochs": 3, "max_steps": None})]
    ((rule, numbers),) = found["optimizer"]
    assert rule == "adam" and numbers["lr"] == 0.01
    assert found["algorithm"] == [("fedprox", {"mu": 0.25})]
    assert found["layout"] == [("part", {"elements": 22, "uploaded": 10, "frozen": 0})]
    assert [name for name, _ in found["codec"]] == ["topk:0.5+ef", "int8", "float32"]
    assert found["broadcast"] == [("int8", {})]
    ((_, digests),) = found["compiled"]
    assert set(digests) == {"begin", "train", "finish", "eval", "infer"} and "privacy" not in found
    assert json.loads(json.dumps(strategies(compiled.plan.manifest))) == list(strategies(compiled.plan.manifest))


@pytest.mark.capability("G18")
def test_equal_plans_have_equal_lists_and_another_number_another_one() -> None:
    one, same = (compile_plan(wanted()).plan for _ in range(2))
    other = compile_plan(wanted(algorithm=FedProx(0.5))).plan
    assert one.id == same.id != other.id
    assert strategies(one.manifest) == strategies(same.manifest) != strategies(other.manifest)
    assert strategies(Manifest.from_bytes(one.manifest.data)) == strategies(one.manifest)


def test_private_rows_are_a_strategy_of_their_own() -> None:
    private = ExampleLevel(epsilon=8.0, delta=1e-5, clip=1.0, rows=64)
    alike = policy(weight_cap=1)
    experiment = wanted(privacy=private, algorithm=FedAvg(), max_steps=4, broadcast="float32", rounds=alike)
    ((name, parameters),) = by_kind(compile_plan(experiment).plan.manifest)["privacy"]
    assert name == "example_level" and parameters["clip"] == 1.0


@pytest.mark.capability("G18")
def test_a_plan_of_another_version_or_with_another_strategy_is_refused() -> None:
    plan = compile_plan(wanted()).plan.sign(RESEARCHER)

    def checked(data: bytes) -> None:
        check_plan(data, plan.graphs, signature=plan.signature, signer=plan.signer, allowed_signers=[RESEARCHER.public])

    checked(plan.manifest.data)
    said = plan.manifest.to_json()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"format": "coterie-plan-9"}, "plan_manifest"),
        ({"algorithm": {"name": "fedprox", "parameters": {"mu": 0.0}}}, "plan_signature"),
        ({"codecs": []}, "plan_signature"),
        ({"strategies": []}, "plan_manifest"),
    ]
    for change, code in changes:
        with pytest.raises(PlanRefused) as refused:
            checked(canonical_json({**said, **change}))
        assert refused.value.reason == code


@pytest.mark.capability("G18")
def test_the_trail_tells_who_ran_which_strategies_under_which_policy(coordinator: Opener) -> None:
    compiled = compile_plan(wanted())
    recipe = Recipe(compiled.plan.manifest, compiled.plan.graphs, compiled.initial_bytes)

    async def check(operator: Operator) -> None:
        await operator.population()
        await operator.ok("PATCH", "/v1/populations/people", json={"algorithms": ["fedprox", "fedavg"]})
        first = await operator.experiment(recipe=recipe, lr=0.5)
        second = await operator.experiment(recipe=tiny())
        await operator.ok("POST", f"/v1/experiments/{second}/stop")
        trail = (await operator.ok("GET", "/v1/audit"))["items"]
        steps = [(item["action"], item["subject"]) for item in trail]
        made, other = (steps.index(("experiment.created", one)) for one in (first, second))
        changed = next(place for place, (action, _) in enumerate(steps) if action == "policy.changed")
        assert changed < made < other < steps.index(("experiment.stopped", second))
        entry = trail[made]
        assert entry["data"]["plan"] == compiled.plan.id
        assert entry["data"]["strategies"] == list(strategies(compiled.plan.manifest))
        assert entry["data"]["server"]["parameters"]["lr"] == 0.5 and entry["data"]["reducer"] == "mean"
        assert entry["actor"] == trail[changed]["actor"] and entry["actor"].startswith("tok_") and entry["at"]
        assert trail[other]["data"]["strategies"] != entry["data"]["strategies"]
        # The trail is a chain: an entry cannot be changed without every later one.
        assert all(after["previous"] == before["digest"] for before, after in zip(trail, trail[1:], strict=False))

    async def work() -> None:
        async with coordinator() as operator:
            await check(operator)

    asyncio.run(work())
