"""What a device remembers of an experiment's versions, and whether a task goes on from it.

A device keeps the newest head that a training task showed it (`coterie.protocol.lineage`). Every later task of the
experiment must be of the same chain, further on or further back; the links between come from the coordinator, and only
true ones lead from head to head. The first head of an experiment is taken as it comes.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.database import ClientDatabase
from coterie.errors import PolicyRefused
from coterie.protocol.device import Task
from coterie.protocol.lineage import GENESIS, Lineage, LineageLink, Links, fold, head
from coterie.protocol.wire import read_message

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS lineages (
    experiment TEXT PRIMARY KEY, plan TEXT NOT NULL, round INTEGER NOT NULL, head TEXT NOT NULL);
"""
MOST_ANSWERS: Final = 4096
"""So many answers with links a device reads for one task at most."""

Fetch = Callable[[str], Awaitable[Any]]
"""A signed GET of a target; its JSON."""


@dataclass(frozen=True)
class ChainPlace:
    """A version in the chain of a plan.

    round: what committed it.
    head: of the chain that ends with it.
    """

    plan: str
    round: int
    head: str


class Lineages:
    """The rows of heads, by experiment."""

    def __init__(self, database: ClientDatabase) -> None:
        self._database = database

    def recall(self, experiment: str) -> ChainPlace | None:
        """The newest version that a training task showed, or None before the first."""
        row = self._database.execute(
            "SELECT plan, round, head FROM lineages WHERE experiment = ?", (experiment,)
        ).fetchone()
        return None if row is None else ChainPlace(*row)

    def remember(self, experiment: str, place: ChainPlace) -> None:
        """Durable when this returns. A version further back than the one that is known changes nothing."""
        with self._database.transaction() as database:
            database.execute(
                "INSERT INTO lineages VALUES (?, ?, ?, ?) ON CONFLICT (experiment)"
                " DO UPDATE SET plan = excluded.plan, round = excluded.round, head = excluded.head"
                " WHERE excluded.round > lineages.round",
                (experiment, place.plan, place.round, place.head),
            )

    def made_in(self, experiment: str) -> Task | None:
        """The task that returned the experiment's committed client state, or None without one."""
        row = self._database.execute(
            "SELECT message FROM tasks JOIN client_states ON client_states.task = tasks.id"
            " WHERE client_states.experiment = ?",
            (experiment,),
        ).fetchone()
        return None if row is None else Task.model_validate_json(row[0])


async def check_lineage(task: Task, lineages: Lineages, ask: Fetch) -> None:
    """Raise PolicyRefused (``lineage_broken``) unless the task's version is of the chain that this device remembers.

    What a training task shows is remembered when this returns. An evaluation's version may come to nothing, so it is
    held to the chain and not remembered.
    ask: for the links between.
    Raises RemoteError too.
    """
    seen = lineages.recall(task.experiment)
    if task.lineage is None:
        if seen is not None:
            raise _broken(f"is missing, though this device has seen the version of round {seen.round}")
        if task.secure is not None:
            raise _broken(
                "is missing, and under secure aggregation clients must be able to check that all have the same one"
            )
        return
    if task.lineage.round == 0 and task.lineage.before != GENESIS:
        raise _broken("has versions before the initial one")
    place = _place_of(task, task.lineage)
    if seen is not None:
        await _require_one_chain(task, place, task.lineage.before, seen, ask)
    if task.kind == "train":
        lineages.remember(task.experiment, place)


async def _require_one_chain(task: Task, place: ChainPlace, before: str, seen: ChainPlace, ask: Fetch) -> None:
    """Raise unless what is told and what was seen are of one chain."""
    if place.plan != seen.plan:
        raise _broken("is that of another plan")
    if place.round == seen.round:
        holds = place.head == seen.head
    elif place.round > seen.round:
        holds = before == seen.head or before == await _head_before(task, seen, place.round, ask)
    else:
        holds = seen.head == await _head_before(task, place, seen.round + 1, ask)
    if not holds:
        raise _broken(f"is incompatible with the version of round {seen.round} that this device has seen")


async def _head_before(task: Task, known: ChainPlace, until: int, ask: Fetch) -> str:
    """The head before round ``until`` of the chain that goes on from a known version."""
    reached, after = known.head, known.round
    for _ in range(MOST_ANSWERS):
        target = f"/v1/device/experiments/{task.experiment}/lineage?after={after}"
        links = read_message(Links, await ask(target)).links
        between = tuple(link for link in links if link.round < until)
        reached = fold(reached, between, experiment=task.experiment, plan=known.plan)
        if len(between) < len(links) or not links:
            return reached
        if links[-1].round <= after:
            raise _broken("has rounds that are not in ascending order")
        after = links[-1].round
    raise _broken(f"has more links than this device reads, {MOST_ANSWERS} answers full")


def same_chain(task: Task, made: Task) -> bool:
    """Whether client state that the task ``made`` returned belongs to the versions before a task that `check_lineage`
    let pass. Both were held to what the device remembers, so of two versions the earlier is in the later one's chain.
    Without a history it belongs to its plan alone: another plan's noise was not made for what is in it. Nor was that of
    another promise, or of none: what a codec kept of an update without noise is added to a later one after its noise.
    """
    if _promised(task) != _promised(made):
        return False
    if task.lineage is None or made.lineage is None:
        return task.lineage is made.lineage and task.plan.id == made.plan.id
    here, then = _place_of(task, task.lineage), _place_of(made, made.lineage)
    return then == here or (then.plan == here.plan and then.round < here.round)


def _promised(task: Task) -> tuple[str, str] | None:
    """What the task's noise hides, and from whom."""
    return None if task.privacy is None else (task.privacy.unit, task.privacy.trusts)


def check_client_state(task: Task, manifest: Manifest) -> None:
    """Raise PolicyRefused (``client_state_refused``) for a plan that keeps state on devices, in the mode that does not
    count on the coordinator.
    """
    if task.secure is None or task.secure.mode != "consistent" or not manifest.client_state:
        return
    raise PolicyRefused(
        f"The method {manifest.algorithm.name!r} keeps state on devices, and the mode consistent counts on no "
        "coordinator: state that one crafted version leaves makes a device's next update differ in ways that no norm "
        "bounds, so that a later sum may be that of one device.",
        hint="Ask the researcher for FedAvg, FedProx or another method that keeps nothing on devices.",
        code="client_state_refused",
    )


def _place_of(task: Task, lineage: Lineage) -> ChainPlace:
    link = LineageLink(round=lineage.round, version=task.model.sha256)
    plan = task.plan.id
    return ChainPlace(plan, lineage.round, head(lineage.before, link, experiment=task.experiment, plan=plan))


def _broken(why: str) -> PolicyRefused:
    return PolicyRefused(
        f"The task's history of versions {why}.",
        hint="Ask the operator whether the coordinator was restored from a backup; the experiment can be submitted "
        "again.",
        code="lineage_broken",
    )
