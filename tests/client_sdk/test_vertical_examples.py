"""The examples of organisations with different columns run as their README says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sdk_kit import clean_environment

from tests.patience import patience

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(*words: str) -> str:
    command = [sys.executable, str(EXAMPLES / words[0]), *words[1:]]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_shops_learn_their_common_customers_or_how_many_there_are() -> None:
    whole, counted = said("psi.py"), said("psi.py", "--count")
    for text in (whole, counted):
        assert re.search(r"The baker has \d+ customers, the florist \d+; \d+ are common", text)
        assert "Hashes of guessed names in what passed: 0" in text
    # Who is common is told by links, which a count has none of.
    assert "links" in whole and "links" not in counted and "In one order" not in counted
    pairs = re.findall(r"(\w+) = (\w+)", whole.partition("In one order at both:")[2])
    assert len(pairs) == 5 and all(mine.upper() == theirs for mine, theirs in pairs)


def test_a_split_network_shows_what_the_partner_and_noise_are_worth() -> None:
    pytest.importorskip("sklearn", reason="a plain install has no scikit-learn")
    whole = said("split_network.py")
    found = re.search(r"AUC on rows held out: (0\.\d+), of the clinic alone (0\.\d+)", whole)
    assert found and float(found[1]) > 0.97 > float(found[2]) + 0.05, whole
    open_leak, hidden = (float(each) for each in re.findall(r"told by gradients \w+ noise: (\d\.\d+)", whole))
    assert open_leak > 0.95 and hidden < 0.65
