"""`coterie audit`: the exit code says whether the claim stands."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.failures import BAD_INPUT, CANNOT_TELL, FAILED, OK

Coterie = Callable[..., Any]

STUDY = """
import numpy as np
from coterie import DataSchema, Experiment, Feature, Label, RoundPolicy
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.privacy import ExampleLevel, UserLevel

random = np.random.default_rng(1)
clients = [
    {"x": random.normal(size=(12, 4)).astype(np.float32), "y": random.integers(0, 3, 12).astype(np.int32)}
    for _ in range(4)
]

def made(privacy):
    return Experiment(
        name="study",
        model=mlp((4, 300, 3)),
        schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        metrics={"accuracy": accuracy},
        batch_size=8,
        holdout=0.4,
        rounds=RoundPolicy(rounds=2, cohort=40, min_updates=4, weight_cap=1, evaluate_every=0),
        privacy=privacy,
        secure_aggregation=False,
    )

open_study = made(None)
private = made(UserLevel(clip=1.0, delta=1e-5, epsilon=2.0))
by_rows = made(ExampleLevel(clip=1.0, delta=1e-5, epsilon=2.0, rows=12))
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.py"
    file.write_text(textwrap.dedent(STUDY), encoding="utf-8")
    return file


def test_a_false_claim_fails_and_a_true_one_does_not(inside: Coterie, study: Path) -> None:
    false = inside("audit", "run", f"{study}:open_study", "--claim", "0.5", "--json")
    assert false.code == FAILED, false.err
    assert false.events[-1]["event"] == "audit" and false.events[-1]["verdict"] == "refuted"
    assert false.events[-1]["cap"] >= false.events[-1]["epsilon"] > 0.5 and "REFUTED" in false.err
    # More than the noise is made for: of its own claim an audit is wrong once in forty times, as this test would be.
    true = inside("audit", "run", f"{study}:private", "--claim", "3", "--json")
    assert true.code == OK, true.err
    assert true.events[-1]["verdict"] == "not refuted" and true.events[-1]["cap"] > 3
    assert "The highest epsilon that this audit could have found: " in true.err and "half the size" in true.err
    own = inside("audit", "run", f"{study}:private", "--rounds", "1", "--json")
    assert own.events[-1]["claimed"] == pytest.approx(2.0) and own.events[-1]["rounds"] == 1


def test_an_audit_that_cannot_tell_says_so_by_its_exit_code(inside: Coterie, study: Path) -> None:
    few = inside("audit", "run", f"{study}:private", "--canaries", "20", "--claim", "8", "--json")
    assert few.code == CANNOT_TELL, few.err
    assert few.events[-1]["verdict"] == "cannot tell" and "CANNOT TELL" in few.err
    rows = inside("audit", "run", f"{study}:by_rows", "--json")
    assert rows.code == CANNOT_TELL and rows.events[-1]["cap"] == 0 and "ExampleLevel" in rows.err
    words = ("--canaries", "100", "--guesses", "34", "--correct", "34", "--json")
    guesses = inside("audit", "guesses", *words, "--claim", "4")
    assert guesses.code == CANNOT_TELL and guesses.events[0]["verdict"] == "cannot tell"
    assert guesses.events[0]["cap"] == pytest.approx(2.38, abs=0.01)
    members = inside("audit", "members", f"{study}:open_study", "--claim", "8", "--json")
    assert members.code == CANNOT_TELL and members.events[-1]["cap"] < 8


def test_a_statement_says_what_is_promised(inside: Coterie, study: Path) -> None:
    found = inside("audit", "statement", f"{study}:private", "--json")
    assert found.code == OK, found.err
    (said,) = found.events
    assert said["neighbours"][0]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert said["neighbours"][1]["epsilon"] > 4 and said["trusts"] == "coordinator"
    assert "Hidden: whether one device took part" in found.err
    assert inside("audit", "statement", f"{study}:open_study").code == BAD_INPUT


def test_guesses_give_the_known_answer(inside: Coterie) -> None:
    words = (
        "audit",
        "guesses",
        "--canaries",
        "1000",
        "--guesses",
        "100",
        "--correct",
        "90",
        "--delta",
        "1e-5",
        "--json",
    )
    found = inside(*words, "--claim", "1.7")
    assert found.code == OK and found.events[0]["epsilon"] == pytest.approx(1.6261, abs=6e-5)
    assert found.events[0]["verdict"] == "not refuted" and found.events[0]["cap"] > 3
    assert inside(*words, "--claim", "1.6").code == FAILED
    assert inside(*words[:-3], "--delta", "2").code == BAD_INPUT


def test_members_are_looked_for(inside: Coterie, study: Path) -> None:
    found = inside("audit", "members", f"{study}:open_study", "--json")
    assert found.code == OK, found.err
    assert 0.3 < found.events[-1]["auc"] < 0.8
