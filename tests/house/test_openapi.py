"""docs/openapi.json is what the coordinator serves; a difference is shown place by place."""

import copy
import json
from typing import Any

import pytest

from tests.house.openapi import COMMAND, PAGE, described, differences


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(PAGE.read_text(encoding="utf-8"))


def test_the_committed_description_is_the_served_one(committed: dict[str, Any]) -> None:
    found = differences(committed, described())
    assert not found, f"docs/openapi.json differs; write it anew with `{COMMAND}`:\n" + "\n".join(found)


def test_it_is_openapi_3_1(committed: dict[str, Any]) -> None:
    assert committed["openapi"].startswith("3.1.")


def test_every_kind_of_difference_is_shown_at_its_place(committed: dict[str, Any]) -> None:
    served = copy.deepcopy(committed)
    assert differences(committed, served) == []
    operation = served["paths"]["/v1/device/check-in"]["post"]
    operation["summary"] = "Other"
    del served["paths"]["/healthz"]
    served["paths"]["/v1/new"] = {}
    operation["tags"].append("more")
    whole = "\n".join(differences(committed, served))
    assert "/paths/~1v1~1device~1check-in/post/summary: " in whole and '"Other" is served' in whole
    assert "/paths/~1healthz: is committed and not served" in whole
    assert "/paths/~1v1~1new: is served and not committed" in whole
    assert "/paths/~1v1~1device~1check-in/post/tags: " in whole
    assert len(whole.splitlines()) == 4
