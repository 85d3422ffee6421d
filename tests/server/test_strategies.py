"""A plan says what it does as one versioned list; who ran what, and who changed which policy, stands in the trail."""

import asyncio
import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from server_kit import RESEARCHER, SCHEMA, Opener, Operator, Recipe, policy, tiny

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.fedprox import FedProx
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.aggregation.plan.strategies import strategies
from coterie.compute.compress import distilled, pruned
from coterie.compute.nn import Linear, Module, Sequential
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.compute.quant import QuantSettings, qat
from coterie.errors import PlanRefused
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json


def wanted(**changes: Any) -> Experiment:
    return replace(
        Experiment(
            name="many",
            model=mlp((2, 3, 2)),
            schema=SCHEMA,
            rounds=policy(),
            loss=softmax_cross_entropy,
            optimizer=sgd(0.01, momentum=0.9),
            algorithm=FedProx(0.25),
            batch_size=8,
            epochs=3,
            codecs=("topk:0.5+ef", "int8", "float32"),
            broadcast="int8",
            uploads=("2.*",),
        ),
        **changes,
    )


@cache
def compiled() -> CompiledPlan:
    return compile_plan(wanted())


def by_kind(manifest: Manifest) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for one in strategies(manifest):
        found.setdefault(one["kind"], []).append((one["name"], one["parameters"]))
    return found


@pytest.mark.capability("G18")
def test_a_plan_names_every_strategy_that_it_combines() -> None:
    manifest = compiled().plan.manifest
    found = by_kind(manifest)
    assert found["training"] == [
        ("plan", {"batch_size": 8, "epochs": 3, "max_steps": None, "precision": "float32", "steps_per_call": 1})
    ]
    ((rule, numbers),) = found["optimizer"]
    assert rule == "sgd" and (numbers["lr"], numbers["momentum"]) == (0.01, 0.9)
    assert found["algorithm"] == [("fedprox", {"mu": 0.25})]
    assert found["layout"] == [("part", {"elements": 17, "uploaded": 8, "frozen": 0})]
    assert [name for name, _ in found["codec"]] == ["topk:0.5+ef", "int8", "float32"]
    assert found["broadcast"] == [("int8", {})]
    ((_, digests),) = found["compiled"]
    assert set(digests) == {"begin", "train", "finish", "eval", "infer"} and "privacy" not in found
    assert json.loads(json.dumps(strategies(manifest))) == list(strategies(manifest))


@pytest.mark.capability("G18")
def test_equal_plans_have_equal_lists_and_another_number_another_one() -> None:
    one, same = compiled().plan, compile_plan(wanted()).plan
    other = compile_plan(wanted(algorithm=FedProx(0.5))).plan
    assert one.id == same.id != other.id
    assert strategies(one.manifest) == strategies(same.manifest) != strategies(other.manifest)
    assert strategies(Manifest.from_bytes(one.manifest.data)) == strategies(one.manifest)


STUDENT = mlp((2, 3, 2))
MASKS = {"0.weight": np.array([[1, 0], [0, 0], [1, 1]], np.float32)}
HALF = ("pruned", {"numbers": 6.0, "share": 0.5})
TAUGHT = ("distilled", {"temperature": 3.0, "weight": 0.5})


def levels(layers: float, weight_bits: float = 8.0, activation_bits: float = 8.0) -> tuple[str, dict[str, Any]]:
    told = {"weight_bits": weight_bits, "activation_bits": activation_bits, "per_channel": 1.0}
    return "quantisation_aware", {"layers": layers, **told}


def taught(student: Module) -> Module:
    teacher = mlp((2, 5, 2))
    return distilled(student, teacher, teacher.init(3), temperature=3.0, weight=0.5)


SMALLER: dict[str, tuple[Module, list[tuple[str, dict[str, Any]]]]] = {
    "as it is": (STUDENT, []),
    "pruned": (pruned(STUDENT, MASKS), [HALF]),
    "quantisation-aware": (qat(STUDENT), [levels(2.0)]),
    "few bits, float activations": (
        qat(STUDENT, QuantSettings(weight_bits=4, activations=None)),
        [levels(2.0, 4.0, 0.0)],
    ),
    "two kinds of levels": (
        Sequential(qat(Linear(2, 3)), qat(Sequential(Linear(3, 3), Linear(3, 2)), QuantSettings(weight_bits=5))),
        [levels(1.0), levels(2.0, 5.0)],
    ),
    "taught": (taught(STUDENT), [TAUGHT]),
    "a pruned model in levels": (pruned(qat(STUDENT), MASKS), [HALF, levels(2.0)]),
    "levels around masks": (qat(pruned(STUDENT, MASKS)), [HALF, levels(2.0)]),
    "all three": (taught(pruned(qat(STUDENT), MASKS)), [TAUGHT, HALF, levels(2.0)]),
}


@pytest.mark.capability("G18")
@pytest.mark.parametrize("name", SMALLER)
def test_a_plan_lists_how_its_model_is_made_smaller(name: str) -> None:
    model, expected = SMALLER[name]
    manifest = compile_plan(wanted(model=model, uploads=None, codecs=("float32",), broadcast="float32")).plan.manifest
    assert by_kind(manifest).get("compression", []) == expected
    # It is signed with the rest, survives the wire, and is absent where there is nothing to tell.
    assert strategies(Manifest.from_bytes(manifest.data)) == strategies(manifest)
    assert (b'"compression"' in manifest.data) is bool(expected)
    with pytest.raises(PlanRefused):
        Manifest.from_bytes(canonical_json({**to_json(manifest), "compression": [{"name": 3}]}))


def test_private_rows_are_a_strategy_of_their_own() -> None:
    manifest = compiled().plan.manifest
    private = PrivateSteps(clip=1.0, noise_multiplier=0.5, expected=8, rows=64)
    ((name, parameters),) = by_kind(replace(manifest, training=replace(manifest.training, private=private)))["privacy"]
    assert name == "example_level" and parameters == to_json(private)


@pytest.mark.capability("G18")
def test_a_plan_of_another_version_or_with_another_strategy_is_refused() -> None:
    plan = compiled().plan.sign(RESEARCHER)

    def checked(data: bytes) -> None:
        check_plan(data, plan.graphs, signature=plan.signature, signer=plan.signer, allowed_signers=[RESEARCHER.public])

    checked(plan.manifest.data)
    said = to_json(plan.manifest)
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
    plan = compiled().plan
    recipe = Recipe(plan.manifest, plan.graphs, compiled().initial_bytes)

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
        assert entry["data"]["plan"] == plan.id
        assert entry["data"]["strategies"] == list(strategies(plan.manifest))
        assert entry["data"]["server"]["parameters"]["lr"] == 0.5 and entry["data"]["reducer"] == "mean"
        assert entry["actor"] == trail[changed]["actor"] and entry["actor"].startswith("tok_") and entry["at"]
        assert trail[other]["data"]["strategies"] != entry["data"]["strategies"]
        # The trail is a chain: an entry cannot be changed without every later one.
        assert all(after["previous"] == before["digest"] for before, after in zip(trail, trail[1:], strict=False))

    async def work() -> None:
        async with coordinator() as operator:
            await check(operator)

    asyncio.run(work())
