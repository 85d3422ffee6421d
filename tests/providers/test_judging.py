"""The judge of proofs: what counts as proved, failed, regressed and not tried."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.providers.environments import ENVIRONMENTS
from tests.providers.judging import judged

FOUND: dict[str, Any] = {
    "provider": "X",
    "version": "1",
    "driver": "d",
    "agrees": 60,
    "declined": ["pad"],
    "wrong": [],
    "graphs": 90,
    "whole": 80,
    "trainings": 18,
    "files": {"exports": 40, "float64": 9},
    "seconds": {"recipes": 1.0, "all": 2.0},
    "steps": {},
    "proved": True,
}


CASES: list[tuple[Any, Any, str, str]] = [
    (FOUND, FOUND, "proved", "90 graphs of plans"),
    (None, FOUND, "proved", "--record"),
    (FOUND, FOUND | {"steps": {"cnn": (9.0, 1.5)}}, "proved", "a step of cnn: 1.5 ms, on the CPU 9.0 ms, 6.0 times"),
    (FOUND, None, "not tried", "no network"),
    (None, FOUND | {"proved": False, "wrong": ["recipe 'add' differs"]}, "failed", "recipe 'add' differs"),
    (FOUND, FOUND | {"proved": False, "wrong": ["x"] * 9}, "regressed", "and 4 more"),
    (FOUND, FOUND | {"whole": 79}, "regressed", "whole was 80, is 79"),
    (FOUND, FOUND | {"agrees": 59}, "regressed", "agrees was 60, is 59"),
    (FOUND, FOUND | {"trainings": 17}, "regressed", "trainings was 18"),
    (FOUND, FOUND | {"files": {"exports": 40, "float64": 8}}, "regressed", "float64 was 9, is 8"),
    (FOUND, FOUND | {"files": {"exports": 41}}, "regressed", "float64 was 9, is 0"),
    ({name: FOUND[name] for name in FOUND if name != "files"}, FOUND, "proved", "40 of exports, 9 of float64"),
    (FOUND | {"files": {}}, FOUND | {"files": {}}, "proved", "none tried"),
    (FOUND, FOUND | {"declined": ["pad", "slice"]}, "regressed", "'slice' needs the CPU's help now"),
    (FOUND, FOUND | {"declined": [], "whole": 90}, "proved", "0 with the CPU's help"),
]


@pytest.mark.parametrize(("before", "found", "state", "said"), CASES)
def test_judgements(before: Any, found: Any, state: str, said: str) -> None:
    judgement = judged("x", before, found, "no network")
    assert judgement.state == state and said in "\n".join(judgement.lines)


def test_the_list_of_proven_environments_is_of_environments_that_exist() -> None:
    listed = json.loads(Path(__file__).with_name("proven.json").read_text(encoding="utf-8"))
    made = {environment.name: environment for environment in ENVIRONMENTS}
    assert set(listed) <= set(made)
    for name, proof in listed.items():
        assert proof["provider"] == made[name].provider and proof["agrees"] > 50 and proof["trainings"] > 10
        # Of environments that run what is written beside plans, the list has every kind.
        assert all(proof["files"][kind] > 50 for kind in made[name].files)
