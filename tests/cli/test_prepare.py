"""`coterie prepare` as a newcomer meets it: from a draft to a schema file, and from that to a model."""

from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from coterie.cli.failures import BAD_INPUT
from coterie.cli.main import run
from coterie.protocol.conversion import to_json
from coterie.protocol.schema_file import read_schema

Coterie = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "examples" / "skewed_csv.py"


def test_shops_prepare_and_then_train(coterie: Coterie, tmp_path: Path) -> None:
    copy(EXAMPLE, tmp_path / "shops.py")
    done = coterie("prepare", "shops.py", "--json")
    assert done.code == 0, done.err
    (event,) = done.events
    assert (event["event"], event["rounds"], event["aggregation"]) == ("prepared", 4, "semi_honest")
    assert event["rows"] == 12 * 150 and event["noise"] == 0
    assert "price: mean" in done.err and "no (" in done.err
    schema = read_schema(tmp_path / "schema.json")
    assert to_json(schema) == event["schema"]
    assert schema.features[2].vocabulary == ("books", "lamps", "shoes", "tents")
    trained = coterie("simulate", "shops.py", "--rounds", "3", "--json")
    assert trained.code == 0, trained.err
    assert trained.events[-1]["accuracy"] > 0.9


def test_what_is_no_survey_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("none.py").write_text("survey = 7\nclients = []\n")
    few = "from coterie.aggregation.preparation import Draft, Number\nfrom coterie.protocol.schema import Label\n"
    Path("few.py").write_text(few + 'survey, clients = Draft((Number("x"),), Label(name="y")), []\n')
    copy(EXAMPLE, "shops.py")
    for words, said in (
        (["prepare", "none.py"], "`survey` is a int, not a Survey or a Draft"),
        (["prepare", "few.py"], "`clients` is empty, not a sequence"),
        (["prepare", "shops.py", "--devices", "3"], "--devices chooses devices of a coordinator"),
        (["prepare", "shops.py", "--population", "shops"], "Add --url URL, or leave --population out"),
        (["prepare", "shops.py", "--url", "http://127.0.0.1:1"], "Add --devices N"),
        (["simulate", "shops.py"], "`coterie prepare` writes it"),
    ):
        assert run(words) == BAD_INPUT
        assert said in capsys.readouterr().err
