"""The public names of the compute core and how they are called are the frozen page: nothing comes, goes or changes its
parameters by accident.
"""

import runpy
from pathlib import Path

import pytest

MAKER = Path(__file__).with_name("make_public_api.py")


@pytest.mark.capability("A3")
def test_the_public_names_and_their_parameters_are_the_frozen_page() -> None:
    frozen = MAKER.with_name("public_api.txt").read_text(encoding="utf-8").splitlines()
    found: list[str] = runpy.run_path(str(MAKER))["rendered"]().splitlines()
    changed = sorted(set(frozen) ^ set(found))
    assert found == frozen, f"{changed}: if that is meant, run python tests/compute/make_public_api.py"
