"""The known answers."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def known() -> dict[str, Any]:
    """tests/privacy/vectors/dp_known_answers.json."""
    path = Path(__file__).resolve().parents[1] / "vectors" / "dp_known_answers.json"
    return json.loads(path.read_text(encoding="utf-8"))
