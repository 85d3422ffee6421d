"""What an operator allows of a population's experiments: nobody goes below, and every refusal names the line."""

from typing import Any

import pytest
from budget_kit import entries, policy, run, submitted
from server_kit import RESEARCHER, Opener, Operator, once

from coterie.privacy.ledger.events import Limit
from coterie.protocol.secure_aggregation import SecureAggregation

FLOORS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "secure": ({"require_secure_aggregation": True}, {}, "require_secure_aggregation", "asks for none"),
    "cohort": ({"min_cohort": 3}, {"cohort": 4, "min_updates": 2}, "min_cohort", "allows sums of 2"),
    "evaluators": (
        {"min_cohort": 3},
        {"cohort": 4, "evaluate_every": 1, "evaluation_cohort": 1},
        "min_cohort",
        "allows sums of 1",
    ),
    "evaluators in the open": (
        {"min_cohort": 3},
        {"cohort": 4, "evaluate_every": 1, "evaluation_cohort": 4},
        "min_cohort",
        "allows sums of 1",
    ),
    "groups": (
        {"min_cohort": 5},
        {"cohort": 12, "secure": SecureAggregation(groups=3), "reducer": "median"},
        "min_cohort",
        "allows sums of 4",
    ),
    "algorithm": ({"algorithms": ["scaffold", "fedprox"]}, {}, "algorithms", "runs fedavg"),
    "epsilon": ({"max_epsilon_per_year": 9.0, "delta": 1e-6}, {}, "unit", "asks for none"),
}


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_nobody_goes_below_the_floor_and_the_refusal_names_the_line(coordinator: Opener, name: str) -> None:
    change, asked, line, words = FLOORS[name]

    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            view = await policy(operator, **change)
            assert {key: view["policy"][key] for key in change} == change
            answer = await submitted(operator, None, **asked)
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["line"]) == (403, "population_policy", line)
            assert f"line {line} of its policy" in problem["detail"] and words in problem["detail"]
            await policy(operator, **dict.fromkeys(change))
            assert (await submitted(operator, None, **asked)).status_code == 201

    run(work())


def test_a_change_of_policy_is_audited_and_checked(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            await policy(operator, min_cohort=5, max_epsilon_per_year=4.0, delta=1e-6)
            await policy(operator, min_cohort=5)
            other = "ab" * 32
            view = await policy(operator, signers=[other], min_cohort=None)
            assert (view["signers"], view["policy"]["min_cohort"]) == ([other], None)
            audit = (await operator.ok("GET", "/v1/audit"))["items"]
            told = [(row["action"], row["data"]) for row in audit if row["subject"] == "people"]
            assert told[-4:] == [
                ("policy.changed", {"min_cohort": 5, "max_epsilon_per_year": 4.0, "delta": 1e-6}),
                ("policy.changed", {"min_cohort": None, "signers_only": True}),
                ("signer.removed", {"public": RESEARCHER.public}),
                ("signer.allowed", {"public": other}),
            ]
            assert [type(entry.event) for entry in await entries(operator)] == [Limit]
            for wrong in ({"max_epsilon_per_year": 3.0, "delta": None}, {"min_cohort": 0}, {"colour": 1}):
                answer = await operator.call("PATCH", "/v1/populations/people", json=wrong)
                assert answer.status_code == 422, wrong
            unsigned = await operator.http.patch("/v1/populations/people", json={"min_cohort": 1})
            assert unsigned.status_code == 401
            refused = await operator.call("POST", "/v1/experiments", json=await _request(operator))
            assert (refused.json()["code"], refused.json()["line"]) == ("population_policy", "signers")

    run(work())


def test_nobody_adds_a_key_to_those_that_an_operator_has_named(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            named, strange = RESEARCHER.public, "cd" * 32
            view = await policy(operator, signers=[named])
            assert (view["signers"], view["policy"]["signers_only"]) == ([named], True)
            again = {"name": "people", "data_schema": view["data_schema"]}
            for path, body in (
                (f"/v1/populations/people/signers/{strange}", None),
                ("/v1/populations", again | {"signers": [strange]}),
            ):
                answer = await operator.call("POST" if body else "PUT", path, json=body, headers=once())
                problem = answer.json()
                assert (answer.status_code, problem["code"], problem["line"]) == (403, "population_policy", "signers")
                assert "coterie policy people --signer KEY" in problem["hint"]
            assert (await operator.ok("GET", "/v1/populations/people"))["signers"] == [named]
            await operator.ok("PUT", f"/v1/populations/people/signers/{named}")
            assert (await submitted(operator, None)).status_code == 201
            await policy(operator, signers=None)
            view = await operator.ok("PUT", f"/v1/populations/people/signers/{strange}")
            assert sorted(view["signers"]) == sorted([named, strange])

    run(work())


def test_a_policy_does_not_allow_algorithms_that_there_are_not(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            answer = await operator.call("PATCH", "/v1/populations/people", json={"algorithms": ["fedavg", "fedavgg"]})
            problem = answer.json()
            assert problem["code"] == "unknown_algorithm" and "'fedavgg'" in problem["detail"]
            assert "fedavg" in problem["hint"]
            assert (await operator.ok("GET", "/v1/populations/people"))["policy"]["algorithms"] is None

    run(work())


async def _request(operator: Operator) -> Any:
    return (await operator.request()).model_dump(mode="json")
