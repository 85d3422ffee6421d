"""Pages that tell what the code says tell it truly."""

from pathlib import Path

from coterie.aggregation.engine import diagram
from coterie.aggregation.progress import Reason
from coterie.aggregation.round import Cause
from coterie.compute.numpy.absent import ABSENT, NARROWER

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "rounds.md").read_text(encoding="utf-8")
ARRAYS = (DOCS / "array-api.md").read_text(encoding="utf-8")


def _table(heading: str, page: str = PAGE) -> dict[str, str]:
    rows = page.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    return {row.split("`")[1]: row.split("|")[2].strip() for row in rows if row.startswith("| `")}


def test_the_diagram_is_the_engines_table() -> None:
    assert PAGE.split("```mermaid\n")[1].split("```")[0].strip() == diagram().strip()


def test_every_cause_and_reason_is_named() -> None:
    assert _table("Causes") == {cause.value: cause.sentence for cause in Cause}
    assert _table("Reasons") == {reason.value: reason.sentence for reason in Reason}


def test_everything_that_the_array_functions_leave_out_is_listed() -> None:
    assert _table("Not there", ARRAYS) == {name: f"{why}; {instead}" for name, (why, instead) in ABSENT.items()}
    assert _table("Narrower", ARRAYS) == NARROWER


def test_the_tests_of_the_standard_that_do_not_apply_are_counted() -> None:
    blocks = (ROOT / "tests" / "compute" / "array_api_skips.txt").read_text(encoding="utf-8").strip().split("\n\n")[1:]
    groups = {title.removeprefix("# "): len(ids) for title, *ids in map(str.splitlines, blocks)}
    section = ARRAYS.split("## The standard's own test suite\n")[1]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")]
    assert {reason: int(count) for reason, count in rows[1:]} == groups
    assert f"and {sum(groups.values())} do not apply" in section
