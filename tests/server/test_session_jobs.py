"""What a session says that it is for: the coordinator and Python refuse the same jobs in the same words, and both
parties are told what was asked.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from server_kit import Opener, once
from sessions_kit import ROLES, made, two

from coterie.aggregation.vertical.experiment import VerticalExperiment, job_of
from coterie.errors import ConfigurationError, InputError
from coterie.protocol.session import SessionTerms, session_request
from coterie.protocol.session_job import TreesMethod

JOB = {"label_owner": "owner", "method": {"method": "trees", "trees": 8, "depth": 2}}
THIRD = {"name": "shop", "party": "Shop"}
# What is asked, and the sentence that refuses it.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"job": {**JOB, "label_owner": "judge"}}, "the label owner 'judge' is none of the roles owner, feature"),
    ({"job": {**JOB, "steps": ["align", "evaluate"]}}, "the step evaluate needs the step train before it"),
    ({"job": {**JOB, "steps": ["train", "align"]}}, "the steps are align, train, evaluate, predict, in this order"),
    ({"job": {**JOB, "steps": ["train", "train"]}}, "in this order, each once"),
    ({"job": {**JOB, "steps": ["align"]}}, "a job needs the step train"),
    ({"job": JOB, "roles": [*ROLES, THIRD]}, "the step align is between two parties, and there are 3 roles"),
    ({"job": {**JOB, "stepps": ["train"]}}, "A job has no field 'stepps'; did you mean steps"),
    ({"job": {**JOB, "method": {"method": "trees", "dept": 2}}}, "has no field 'dept'; did you mean depth"),
    ({"job": {**JOB, "method": {"method": "trees", "depth": 13}}}, "depth must be 1 to 12"),
    ({"job": {**JOB, "method": {"method": "trees", "trees": 0}}}, "trees must be 1 to 10000"),
    ({"job": {**JOB, "method": {"method": "trees", "l2": -1}}}, "l2 must be 0 to 1e+09"),
    ({"job": {**JOB, "method": {"method": "trees", "key_bits": 1024}}}, "key_bits must be one of 2048, 3072, 4096"),
    ({"job": {**JOB, "method": {"method": "trees", "trees": 2.5}}}, "valid integer"),
    ({"job": {**JOB, "steps": ["align", "dance"]}}, "Input should be 'align', 'train', 'evaluate' or 'predict'"),
    ({"job": JOB, "stages": [f"s{n}" for n in range(63)]}, "there are more than 64 stages"),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED)
def test_the_coordinator_and_python_refuse_in_the_same_words(
    coordinator: Opener, changes: dict[str, Any], says: str
) -> None:
    async def answer() -> dict[str, Any]:
        async with coordinator() as operator:
            body = {"name": "joint", "roles": ROLES, **changes}
            refused = await operator.call("POST", "/v1/sessions", json=body, headers=once())
            assert refused.status_code == 422
            return refused.json()

    assert says in asyncio.run(answer())["detail"]
    with pytest.raises(InputError) as caught:
        session_request({"name": "joint", "roles": ROLES, **changes})
    assert caught.value.reason == "session_invalid" and says in caught.value.message


def test_both_parties_are_told_the_job_and_need_not_name_its_stages(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            async with two(operator, tmp_path, job=JOB, stages=["notes", "align"]) as (session, one, other):
                assert session["terms"]["stages"] == ["align", "learning", "notes"]
                terms = one.membership.terms
                assert terms.digest == other.membership.terms.digest
                experiment = VerticalExperiment.of("joint", terms)
                assert experiment.method == TreesMethod(trees=8, depth=2)
                assert experiment.parties == {"owner": "Clinic", "feature": "Registry"}
                # What is made of the terms asks for the same again.
                assert experiment.request().job == experiment.job == terms.job
                shown = (await operator.ok("GET", f"/v1/sessions/{session['id']}"))["terms"]
                assert shown["job"]["method"]["trees"] == 8
                for changed in ({**shown["job"], "label_owner": "feature"}, {**shown["job"], "later": 1}):
                    assert SessionTerms.model_validate({**shown, "job": changed}).digest != terms.digest
            plain = await made(operator, stages=["rows"])
            assert "job" not in plain["terms"]
            terms = SessionTerms.model_validate(plain["terms"])
            silent = SessionTerms.model_validate({**plain["terms"], "job": None})
            assert silent.digest == terms.digest and silent.model_dump(mode="json") == plain["terms"]

    asyncio.run(work())


def test_a_job_that_this_version_does_not_know_is_not_begun(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            terms = (await made(operator, job=JOB))["terms"]
        for job, says in (
            ({**terms["job"], "unit": 3}, "A job has no field 'unit'"),
            ({**terms["job"], "method": {**terms["job"]["method"], "subsample": 0.5}}, "has no field 'subsample'"),
            (None, "does not say what it is for"),
        ):
            given = {**terms, "job": job} if job else {k: v for k, v in terms.items() if k != "job"}
            with pytest.raises(ConfigurationError, match=says) as caught:
                job_of("joint", SessionTerms.model_validate(given))
            assert caught.value.reason == "session_job"

    asyncio.run(work())
