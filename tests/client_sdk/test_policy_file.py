"""A device's policy as a file: what it may say, and every way of getting it wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.client import client
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.policy_file import LARGEST_FILE, PLAN_RULES, RULES, read_policy
from coterie.errors import ConfigurationError

KEY = "0123456789abcdef" * 4

WHOLE = f"""
# What this hospital takes part in.
require_secure_aggregation = true
min_cohort = 20
min_corrupt = 0.2
modes = ["consistent"]
min_endorsed = 12
endorsers = ["{KEY}"]
max_epsilon = 8          # over everything
max_delta = 1e-6
units = ["user"]
trusts = ["device", "cohort"]
signers = [
    "{KEY}",
]
threads = 2
memory_bytes = 536_870_912
max_upload_bytes = 1000
max_download_bytes = 2000
max_weight = 500
max_steps = 70
reveal_data = true
provider = "openvino"
parallel = "data(3)"
ledger = "books/ledger.db"

[plan]
manifest_bytes = 1000
parameters = 2000
state = 3000
graph_bytes = 4000
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def to_file(text: str | bytes) -> Path:
        path = tmp_path / "policy.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to_file


def test_every_line_reaches_the_policy(write: Callable[[str], Path]) -> None:
    policy = read_policy(write(WHOLE))
    assert policy.require_secure_aggregation and policy.reveal_data
    assert (policy.min_cohort, policy.max_epsilon, policy.max_delta) == (20, 8.0, 1e-6)
    assert policy.modes == {"consistent"} and policy.signers == {KEY} and policy.min_corrupt == 0.2
    assert policy.units == {"user"} and policy.trusts == {"device", "cohort"}
    assert (policy.threads, policy.memory_bytes, policy.max_weight, policy.max_steps) == (2, 2**29, 500, 70)
    assert (policy.max_upload_bytes, policy.max_download_bytes, policy.provider) == (1000, 2000, "openvino")
    assert (policy.min_endorsed, policy.endorsers, policy.parallel) == (12, {KEY}, "data(3)")
    # A path in the file is one from the file's folder.
    assert policy.ledger is not None and policy.ledger.is_absolute()
    assert policy.ledger.parts[-2:] == ("books", "ledger.db")
    plan = policy.plan
    assert (plan.manifest_bytes, plan.parameters, plan.state, plan.graph.graph_bytes) == (1000, 2000, 3000, 4000)
    # The whole file above states every rule there is.
    assert policy.source is not None
    assert set(RULES) | {f"plan.{name}" for name in PLAN_RULES} == set(policy.source.lines) - {"plan"}


def test_what_is_left_out_keeps_its_default(write: Callable[[str], Path]) -> None:
    policy = read_policy(write("min_cohort = 7\n"))
    assert policy == DevicePolicy(min_cohort=7)


def test_a_policy_knows_its_lines(write: Callable[[str], Path]) -> None:
    policy = read_policy(write(WHOLE))
    assert policy.where("min_cohort") == "policy.toml, line 4 (min_cohort)"
    assert policy.where("signers") == "policy.toml, line 13 (signers)"
    assert read_policy(write("threads = 1")).where("min_cohort").startswith("the default of min_cohort")
    assert DevicePolicy().where("min_cohort") == "the device's policy (min_cohort)"


MISTAKES = {
    "not TOML": ("min_cohort 5", "this is not TOML", "name = value"),
    "Python's true": ("require_secure_aggregation = True", "this is not TOML", "name = value"),
    "twice": ("min_cohort = 5\nmin_cohort = 6", "this is not TOML", "name = value"),
    "empty": ("", "is empty", "require_secure_aggregation = true"),
    "comments only": ("# min_cohort = 5\n", "is empty", "require_secure_aggregation = true"),
    "misspelt": ("threads = 1\nmin_cohorts = 5", "line 2: there is no rule min_cohorts", "Did you mean min_cohort?"),
    "with hyphens": ("require-secure-aggregation = true", "line 1: there is no rule", "require_secure_aggregation?"),
    "of nothing known": ("colour = 'red'", "line 1: there is no rule colour", "These exist:"),
    "in a table": ("[privacy]\nmin_cohort = 5", "line 1: there is no table [privacy]", "(min_cohort) at the top"),
    "below [plan]": ("[plan]\nmin_cohort = 5", "line 2: min_cohort is in the wrong place", "above the line [plan]"),
    "above [plan]": ("graph_bytes = 5", "line 1: graph_bytes is in the wrong place", "below a line [plan]"),
    "plan as a value": ("plan = 5", "line 1: plan is a table", "Write [plan]"),
    "misspelt in [plan]": ("[plan]\nparameter = 5", "line 2: there is no rule plan.parameter", "parameters?"),
    "quoted number": ('min_cohort = "5"', 'a whole number of at least 2, without quotes; it is the text "5"', ""),
    "fraction": ("min_cohort = 5.5", "line 1: min_cohort must be a whole number of at least 2", ""),
    "flag for a number": ("min_cohort = true", "it is true", ""),
    "one in a cohort": ("min_cohort = 1", "at least 2", ""),
    "negative": ("max_steps = -3", "at least 1, without quotes; it is -3", ""),
    "quoted flag": ('require_secure_aggregation = "true"', "true or false, in lower case and without quotes", ""),
    "number for a flag": ("reveal_data = 1", "true or false", ""),
    "unknown mode": ('modes = ["malicious"]', "'semi_honest', 'consistent'", ""),
    "a mode as text": ('modes = "consistent"', 'it is the text "consistent"', ""),
    "no mode": ("modes = []", "a list of one or more", ""),
    "no signer": ("signers = []", "leave the line out", ""),
    "a short key": ('signers = ["abcd"]', "64 lower-case hexadecimal digits", ""),
    "a key in capitals": (f'signers = ["{KEY.upper()}"]', "lower-case", ""),
    "a key alone": (f'signers = "{KEY}"', "a list of one or more public keys", ""),
    "a cohort, and none asked for": (
        "require_secure_aggregation = false\nmin_cohort = 20",
        "line 1: require_secure_aggregation cannot be false beside min_cohort in line 2",
        "without min_cohort",
    ),
    "a share of one": ("min_corrupt = 1", "line 1: min_corrupt must be a number of at least 0 and below 1", ""),
    "unknown unit": ('max_epsilon = 8\nunits = ["row"]', "'user', 'example'", ""),
    "trust alone": ('trusts = ["device"]', "line 1: trusts has no effect without max_epsilon", "max_epsilon = 8.0"),
    "a mode that its trust rules out": (
        'max_epsilon = 8.0\nmodes = ["semi_honest"]\ntrusts = ["device", "cohort"]',
        "line 2: modes cannot name semi_honest: trusts takes the noise of a cohort",
        'add "coordinator" to trusts in line 3',
    ),
    "both modes beside such trust": (
        'max_epsilon = 8.0\ntrusts = ["cohort"]\nmodes = ["consistent", "semi_honest"]',
        "line 3: modes cannot name semi_honest",
        'Write modes = ["consistent"]',
    ),
    "no budget": ("max_epsilon = 0", "a number above 0", ""),
    "an endless budget": ("max_epsilon = inf", "a number above 0", ""),
    "no number": ("max_epsilon = nan", "a number above 0", ""),
    "quoted budget": ('max_epsilon = "8"', "without quotes, as in 8.0", ""),
    "delta of one": ("max_epsilon = 8.0\nmax_delta = 1.0", "line 2: max_delta must be a number between 0 and 1", ""),
    "endorsed by nobody": ("min_endorsed = 3", "line 1: min_endorsed has no effect without endorsers", "endorsers ="),
    "endorsers for nothing": (f'endorsers = ["{KEY}"]', "has no effect without min_endorsed", "min_endorsed ="),
    "endorsed in semi_honest": (
        f'min_endorsed = 3\nendorsers = ["{KEY}"]\nmodes = ["semi_honest"]',
        "line 3: modes cannot name semi_honest together with min_endorsed",
        'modes = ["consistent"]',
    ),
    "a ledger alone": ('ledger = "l.db"', "line 1: ledger has no effect without max_epsilon", "max_epsilon = 8.0"),
    "a ledger without a name": ('max_epsilon = 8\nledger = " "', "line 2: ledger must be the path of a file", ""),
    "delta alone": ("max_delta = 1e-5", "line 1: max_delta has no effect without max_epsilon", "max_epsilon = 8.0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_line_and_its_mending(write: Callable[[str], Path], mistake: str) -> None:
    text, says, hint = MISTAKES[mistake]
    with pytest.raises(ConfigurationError) as caught:
        read_policy(write(text))
    assert caught.value.reason == "policy_file"
    assert says in caught.value.message and "policy.toml" in caught.value.message
    assert caught.value.hint and hint in caught.value.hint


def test_files_that_are_none_are_named(write: Callable[[str | bytes], Path], tmp_path: Path) -> None:
    cases = {
        tmp_path / "absent.toml": "there is no such file",
        tmp_path: "this is a folder",
    }
    for path, says in cases.items():
        with pytest.raises(ConfigurationError, match=says):
            read_policy(path)
    with pytest.raises(ConfigurationError, match="line 2: this is not UTF-8"):
        read_policy(write(b"min_cohort = 5\n# caf\xe9\n"))
    with pytest.raises(ConfigurationError, match="more than"):
        read_policy(write(b"#" * (LARGEST_FILE + 1)))


@pytest.mark.parametrize(
    ("option", "line"),
    [("threads", "threads = 1"), ("memory_mb", "memory_bytes = 1"), ("reveal_data", "reveal_data = true")],
)
def test_a_file_and_an_option_may_not_say_the_same(
    write: Callable[[str], Path], tmp_path: Path, option: str, line: str
) -> None:
    store = tmp_path / "store"
    given: dict[str, Any] = {option: 1}
    with pytest.raises(ConfigurationError) as caught:
        client("http://127.0.0.1:1", data="rows.npz", policy=write(line), store=store, **given)
    assert caught.value.reason == "policy_conflict" and "line 1" in caught.value.message
    assert not store.exists()
