"""The job of a session in one process: rows are found by id, encryption changes the time alone, mistakes are named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.vertical.experiment import VerticalExperiment
from coterie.client_sdk.party.job_table import TableChoice
from coterie.errors import CoterieError
from coterie.protocol.session_job import JobMethod, LinearMethod, TreesMethod
from coterie.simulation import simulate_vertical
from coterie.simulation.trees import SimulatedTrees

EXPERIMENT = VerticalExperiment(
    name="credit",
    label_owner="bank",
    parties={"bureau": "Bureau", "bank": "Bank"},
    method=TreesMethod(trees=2, depth=2, bins=6, key_bits=2048),
)
CHOICES = {"bank": TableChoice(ids=("name",), label="late"), "bureau": TableChoice(ids=("who",))}


def tables() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    income, debt, years = rng.normal(size=(3, 90))
    people = np.array([f"Person {n}" for n in range(90)])
    there = rng.permutation(np.arange(10, 90))
    return {
        "bank": {"name": people[:80], "income": income[:80], "late": (debt - income > 0)[:80].astype(float)},
        "bureau": {"who": np.char.upper(people[there]), "debt": debt[there], "years": years[there]},
    }


@pytest.mark.parametrize("method", [EXPERIMENT.method, LinearMethod(epochs=2, key_bits=2048)])
def test_encryption_changes_the_time_alone_and_rows_are_found_by_id(method: JobMethod) -> None:
    given, asked = tables(), replace(EXPERIMENT, method=method)
    apart, joined = (
        simulate_vertical(asked, given, choices=CHOICES, held_out=0.3, encrypted=encrypted, seed=3)
        for encrypted in (True, False)
    )
    assert apart.scores is not None and joined.scores is not None
    assert np.array_equal(apart.scores, joined.scores) and apart.evaluation == joined.evaluation
    assert apart.evaluation is not None and apart.evaluation.auc is not None and apart.evaluation.auc > 0.85
    assert apart.held_out is not None and 0 < apart.held_out.sum() < 70 == len(apart.held_out)
    mine, theirs = given["bank"]["name"][apart.rows["bank"]], given["bureau"]["who"][apart.rows["bureau"]]
    assert [*np.char.upper(mine)] == [*theirs]


def test_steps_that_are_not_asked_for_are_not_done() -> None:
    bank = {name: values[:80] for name, values in tables()["bank"].items()}
    bureau = {name: values[:80] for name, values in tables()["bureau"].items() if name != "who"}
    alone = replace(EXPERIMENT, steps=("train",))
    choices = {**CHOICES, "bureau": TableChoice()}
    found = simulate_vertical(alone, {"bank": bank, "bureau": bureau}, choices=choices, encrypted=False)
    assert (found.evaluation, found.scores, found.held_out) == (None, None, None)
    assert [*found.rows["bureau"]] == [*range(80)]
    assert isinstance(found.model, SimulatedTrees) and len(found.model.forest.trees) == 2


@pytest.mark.parametrize(
    ("role", "change", "choice", "code", "says"),
    [
        (
            "bureau",
            {"debt": np.full(80, np.inf)},
            None,
            "data_cell",
            "Bureau (role bureau), step train: the table given",
        ),
        ("bureau", {"town": np.array(["Rome"] * 80)}, None, "data_dtype", "'town' is text"),
        ("bureau", {"who": np.array(["Person 1"] * 80)}, None, "ids_repeated", "Bureau (role bureau), step align"),
        (
            "bureau",
            {"who": np.array([f"Person {n}" for n in range(75, 155)])},
            None,
            "intersection_small",
            "step align",
        ),
        ("bureau", {"who": np.arange(80.0)}, None, "ids_kind", "'who' holds float64"),
        ("bank", {"late": np.full(80, 2.0)}, None, "data_cell", "Bank (role bank), step train"),
        ("bank", {}, TableChoice(ids=("name",)), "job_columns", "no column is named as the label"),
        ("bureau", {}, TableChoice(ids=("who",), columns=("dept",)), "data_missing", "Did you mean debt?"),
    ],
)
def test_mistakes_name_party_step_and_column(
    role: str, change: dict[str, Any], choice: TableChoice | None, code: str, says: str
) -> None:
    given = tables()
    given[role] |= change
    with pytest.raises(CoterieError) as caught:
        simulate_vertical(EXPERIMENT, given, choices={**CHOICES, **({role: choice} if choice else {})})
    assert caught.value.reason == code and says in str(caught.value)


def test_an_experiment_has_a_table_and_a_choice_for_each_role() -> None:
    with pytest.raises(CoterieError, match="Give each role its table") as caught:
        simulate_vertical(EXPERIMENT, tables(), choices={"bank": CHOICES["bank"]})
    assert caught.value.reason == "role_unknown"
