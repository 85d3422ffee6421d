"""The machines of attempts that are under way, in memory: a cache of rows."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.secure.machine import Machine
from coterie.server.store import attempts, mailbox

KEPT = 8
"""So many attempts' machines stay in memory."""
AnyMessage = TypeVar("AnyMessage", bound=BaseModel)


class Machines:
    """Machines and bundles in memory, for as long as their phase lasts: a cache of rows."""

    def __init__(self) -> None:
        self._machines: OrderedDict[str, tuple[int, Machine]] = OrderedDict()
        self._bundles: OrderedDict[tuple[str, str], Mapping[int, Any]] = OrderedDict()
        self._turn = asyncio.Lock()

    def keep(self, attempt: str, version: int, machine: Machine) -> None:
        """Remember the machine of a row at a version that was just committed."""
        _remember(self._machines, attempt, (version, machine))

    async def of(self, session: AsyncSession, attempt: str, version: int) -> Machine | None:
        """The machine of an attempt at this version of its row, or a later one; None before its roster, and when it is
        over.
        """
        found = self._machines.get(attempt)
        if found is not None and found[0] == version:
            return found[1]
        async with self._turn:
            found = self._machines.get(attempt)
            if found is not None and found[0] == version:
                return found[1]
            cache = await attempts.state_of(session, attempt)
            if cache is None:
                return None
            found_version, text = cache
            machine = await asyncio.to_thread(Machine.from_text, text)
            self.keep(attempt, found_version, machine)
            return machine

    async def messages(
        self, session: AsyncSession, machine: Machine, phase: str, kind: type[AnyMessage]
    ) -> Mapping[int, AnyMessage]:
        """The messages of a phase that is over, by place."""
        attempt = machine.state.terms.attempt
        found = self._bundles.get((attempt, phase))
        if found is None:
            async with self._turn:
                found = self._bundles.get((attempt, phase))
                if found is None:
                    owners = await attempts.devices_of(session, attempt)
                    texts = await mailbox.bundles(session, attempt, phase)
                    placed = {machine.places[owners[task]]: text for task, text in texts.items()}
                    found = await asyncio.to_thread(_read_all, placed, kind)
                    _remember(self._bundles, (attempt, phase), found)
        return found


def _read_all(texts: Mapping[int, str], kind: type[AnyMessage]) -> Mapping[int, AnyMessage]:
    return {place: kind.model_validate_json(text) for place, text in texts.items()}


Key = TypeVar("Key")
Value = TypeVar("Value")


def _remember(cache: "OrderedDict[Key, Value]", key: Key, value: Value) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > KEPT:
        cache.popitem(last=False)
