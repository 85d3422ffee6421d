"""Write docs/openapi.json anew: `python -m tests.house.openapi`."""

import json
import tempfile
from pathlib import Path
from typing import Any, cast

from coterie.server.app import create_app
from coterie.server.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
COMMAND = "python -m tests.house.openapi"


def described() -> dict[str, Any]:
    """The description that this version serves, without its version: that changes with every release."""
    with tempfile.TemporaryDirectory() as folder:
        whole = create_app(Settings(folder=Path(folder))).openapi()
    return {**json.loads(json.dumps(whole)), "info": {**whole["info"], "version": "committed"}}


def differences(committed: Any, served: Any, place: str = "") -> list[str]:
    """Every place in which two documents differ, as a JSON pointer and what stands there in each."""
    match committed, served:
        case dict(), dict():
            one, other = cast(dict[str, Any], committed), cast(dict[str, Any], served)
            gone = [f"{place}/{_escaped(key)}: is committed and not served" for key in one if key not in other]
            new = [f"{place}/{_escaped(key)}: is served and not committed" for key in other if key not in one]
            both = (key for key in one if key in other)
            inside = [line for key in both for line in differences(one[key], other[key], f"{place}/{_escaped(key)}")]
            return [*gone, *new, *inside]
        case list(), list() if len(cast(list[Any], committed)) == len(cast(list[Any], served)):
            pairs = enumerate(zip(cast(list[Any], committed), cast(list[Any], served), strict=True))
            return [line for at, (one, other) in pairs for line in differences(one, other, f"{place}/{at}")]
        case _ if committed == served and type(committed) is type(served):
            return []
        case _:
            return [f"{place or '/'}: {_short(committed)} is committed, {_short(served)} is served"]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def written() -> str:
    """The file's text."""
    return json.dumps(described(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
