"""A device holds tasks to the versions that it remembers, as the vectors say; and reads links page by page."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from coterie import errors
from coterie.client_sdk.device.database import ClientDatabase
from coterie.client_sdk.device.lineage import (
    MOST_ANSWERS,
    SCHEMA,
    ChainPlace,
    Fetch,
    Lineages,
    check_lineage,
    same_chain,
)
from coterie.protocol import ids
from coterie.protocol.control import BlobRef
from coterie.protocol.device import PlanRef, Task
from coterie.protocol.lineage import GENESIS, MOST_LINKS, Lineage, LineageLink, fold
from coterie.protocol.secagg import SecureTerms

FILE: Any = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "lineage.json").read_text("ascii"))
EXPERIMENT, PLAN = str(FILE["experiment"]), str(FILE["plan"])
SECURE = SecureTerms.model_validate(
    {
        "attempt": ids.new_id(ids.ATTEMPT),
        "mode": "consistent",
        "corrupt": 0.1,
        "dropout": 0.1,
        "min_clients": 9,
        "max_clients": 10,
        "weight_cap": 500,
        "sections": [{"name": "counts", "encoding": "exact", "values": 5, "bits": 32, "top": 1}],
        "noise": None,
        "phase_ms": 1000,
    }
)


def task(asked: Any) -> Task:
    return Task(
        id=ids.new_id(ids.TASK),
        device=ids.new_id(ids.DEVICE),
        experiment=EXPERIMENT,
        round=9,
        kind=asked["kind"],
        plan=PlanRef(id=asked["plan"], signature="A" * 86 + "==", signer="ab" * 32),
        model=BlobRef(sha256=asked["version"], size=1),
        frozen=None,
        hyper={},
        codecs=("float32",),
        lease_ms=1,
        weight_cap=1,
        upload_limit=1,
        seed=1,
        edge=None,
        secure=SECURE if asked["secure"] else None,
        lineage=None if asked["lineage"] is None else Lineage.model_validate(asked["lineage"]),
    )


def at(links: Sequence[LineageLink], number: int, **changes: Any) -> Task:
    """A training task on the version of one link."""
    before = fold(GENESIS, [link for link in links if link.round < number], experiment=EXPERIMENT, plan=PLAN)
    version = next(link.version for link in links if link.round == number)
    lineage = {"round": number, "before": before}
    asked = {"kind": "train", "secure": False, "plan": PLAN, "version": version, "lineage": lineage}
    return task(asked | changes)


def told(links: Sequence[LineageLink], asked: list[int], *, page: int = MOST_LINKS) -> Fetch:
    """A coordinator that knows these links."""

    async def ask(target: str) -> Any:
        after = int(parse_qs(urlsplit(target).query)["after"][0])
        asked.append(after)
        return {"links": [link.model_dump() for link in links if link.round > after][:page]}

    return ask


@pytest.fixture
def lineages(tmp_path: Path) -> Any:
    database = ClientDatabase(tmp_path, SCHEMA)
    yield Lineages(database)
    database.close()


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["name"])
def test_tasks_of_the_chain_are_taken_and_remembered(case: Any, lineages: Lineages) -> None:
    if case["seen"]:
        lineages.remember(EXPERIMENT, ChainPlace(**case["seen"]))
    links = [LineageLink.model_validate(link) for link in case["links"]]
    asyncio.run(check_lineage(task(case["task"]), lineages, told(links, [])))
    assert lineages.recall(EXPERIMENT) == (ChainPlace(**case["remembers"]) if case["remembers"] else None)


@pytest.mark.parametrize("case", FILE["refused"], ids=lambda case: case["name"])
def test_tasks_of_another_chain_are_refused_and_nothing_is_remembered(case: Any, lineages: Lineages) -> None:
    before = ChainPlace(**case["seen"]) if case["seen"] else None
    if before:
        lineages.remember(EXPERIMENT, before)
    links = [LineageLink.model_validate(link) for link in case["links"]]
    with pytest.raises(errors.PolicyRefused) as refused:
        asyncio.run(check_lineage(task(case["task"]), lineages, told(links, [])))
    assert refused.value.reason == case["code"]
    assert lineages.recall(EXPERIMENT) == before


CHAIN = [LineageLink(round=number, version=f"{number:064x}") for number in range(700)]


def test_many_links_are_read_page_by_page_and_the_next_version_needs_none(lineages: Lineages) -> None:
    asked: list[int] = []
    asyncio.run(check_lineage(at(CHAIN, 1), lineages, told(CHAIN, asked)))
    asyncio.run(check_lineage(at(CHAIN, 2), lineages, told(CHAIN, asked)))
    assert asked == []
    asyncio.run(check_lineage(at(CHAIN, 699), lineages, told(CHAIN, asked)))
    assert asked == [2, 258, 514]
    with pytest.raises(errors.PolicyRefused, match="is incompatible with the version of round 699"):
        asyncio.run(check_lineage(at([*CHAIN[:300], *CHAIN[301:]], 699), lineages, told(CHAIN, asked)))


def test_a_coordinator_that_tells_links_for_ever_is_given_up(lineages: Lineages) -> None:
    asyncio.run(check_lineage(at(CHAIN, 1), lineages, told(CHAIN, [])))
    asked: list[int] = []

    async def ask(target: str) -> Any:
        asked.append(int(target.rpartition("=")[2]))
        return {"links": [{"round": asked[-1] + 1, "version": "ab" * 32}]}

    far = {"round": 1 << 40, "before": "ab" * 32}
    with pytest.raises(errors.PolicyRefused, match="more links"):
        asyncio.run(check_lineage(at(CHAIN, 2, lineage=far), lineages, ask))
    assert len(asked) == MOST_ANSWERS


def test_client_state_belongs_to_the_versions_before_its_task_and_to_no_others() -> None:
    forked = [*CHAIN[:5], LineageLink(round=5, version="ff" * 32)]
    assert same_chain(at(CHAIN, 6), at(CHAIN, 5))
    assert same_chain(at(CHAIN, 5), at(CHAIN, 5))
    assert not same_chain(at(CHAIN, 4), at(CHAIN, 5))
    assert not same_chain(at(CHAIN, 5), at(forked, 5))
    assert not same_chain(at(CHAIN, 6), at(CHAIN, 5, plan="ac" * 32))
    silent = at(CHAIN, 5, lineage=None)
    assert not same_chain(at(CHAIN, 6), silent) and not same_chain(silent, at(CHAIN, 5))
    assert same_chain(silent, silent)
    assert not same_chain(silent, at(CHAIN, 5, plan="ac" * 32, lineage=None))
