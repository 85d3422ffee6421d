"""A researcher with a researcher's token and nothing else, from the first refusal to the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_flow import Coterie, Place, next_event, place, running

from coterie.cli.failures import REMOTE

__all__ = ["place"]


@pytest.mark.timeout(900)
def test_a_researchers_token_is_enough_once_an_operator_has_made_room(
    inside: Coterie, place: Place, environment: dict[str, str], tmp_path: Path
) -> None:
    def administrator(*words: str) -> list[dict[str, Any]]:
        done = inside(*words, "--json", cwd=place.folder, **place.settings)
        assert done.code == 0, done.err
        return done.events

    def told_by(token: str, *words: str, code: int = 0) -> list[dict[str, Any]]:
        done = inside(*words, "--json", cwd=place.folder, **place.settings, COTERIE_TOKEN=token)
        assert done.code == code, (done.err, done.out)
        return done.events

    token = administrator("tokens", "make", "--role", "researcher", "--name", "alice")[0]["token"]
    operator = administrator("tokens", "make", "--role", "operator")[0]["token"]
    submit = ("submit", "experiment.py", "--rounds", "1")

    refused = told_by(token, *submit, code=REMOTE)[-1]
    assert refused["code"] == "token_role" and "coterie populations make machines" in refused["hint"]
    assert told_by(operator, *submit, code=REMOTE)[-1]["code"] == "token_role"
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(told_by(token, "populations", "schema", "experiment.py")[0]["schema"]))
    (made,) = told_by(operator, "populations", "make", "machines", str(schema))
    assert (made["name"], made["signers"]) == ("machines", [])
    refused = told_by(token, *submit, code=REMOTE)[-1]
    assert refused["code"] == "token_role" and "coterie populations allow machines " in refused["hint"]
    key = refused["hint"].rsplit(" ", 1)[1]
    (allowed,) = told_by(operator, "populations", "allow", "machines", key)
    assert allowed["signers"] == [key]

    scoped = administrator("tokens", "make", "--role", "researcher", "--population", "machines")[0]["token"]
    assert told_by(scoped, "submit", "experiment.py", "--population", "elsewhere", code=REMOTE)[-1]["code"] == (
        "token_scope"
    )
    (submitted,) = told_by(scoped, *submit)
    assert submitted["token"] is None and "--token TOKEN" in submitted["join"]
    enrolment = told_by(operator, "tokens", "make", "--population", "machines")[0]["token"]
    join = ("client", place.url, "--token", enrolment, "--json")
    with (
        running(*join, "--name", "one", "--data", "data/site-1.csv", cwd=place.folder, environment=environment) as one,
        running(*join, "--name", "two", "--data", "data/site-2.csv", cwd=place.folder, environment=environment),
    ):
        assert next_event(one, "joined")["population"] == "machines"
        *_, finished = told_by(scoped, "watch")
        assert (finished["rounds"], finished["reason"]) == (1, "completed")
    told_by(scoped, "models", "download", "machines", "model.onnx")
    assert (place.folder / "model.onnx").stat().st_size > 0
    told_by(scoped, *submit)
    told_by(scoped, "stop")
    assert [row["name"] for row in told_by(scoped, "list", "populations")] == ["machines"]
    for words in (("tokens", "list"), ("list", "devices"), ("policy", "machines", "--min-cohort", "2")):
        assert told_by(scoped, *words, code=REMOTE)[-1]["code"] == "token_role", words
