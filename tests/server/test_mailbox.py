"""The mailbox at the size of a large attempt, the running sum as a cache, and the machine of an attempt on its way
through rows.
"""

import asyncio
import json
import os
import tracemalloc
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import TooLarge, UpdateRefused
from coterie.privacy.secagg import client
from coterie.privacy.secagg.graph import neighbours
from coterie.privacy.secagg.masked_file import MaskedHeader, encode_masked
from coterie.privacy.secagg.parameters import parameters
from coterie.privacy.secagg.ring import Segment, VectorSpec, pack, reduced
from coterie.privacy.secagg.roster import model_digest
from coterie.privacy.secagg.server import Advertised
from coterie.protocol.conversion import to_text
from coterie.protocol.device import BlobRef, PlanRef, Task
from coterie.protocol.secagg import SecureTerms, Shares, to_base64
from coterie.protocol.secure_sections import COUNTED, COUNTS, SecureSection
from coterie.protocol.signing import SigningKey
from coterie.server.bell import Bell
from coterie.server.faults import CoordinatorFaults
from coterie.server.secure.machine import Failed, Machine, begin
from coterie.server.store import mailbox
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.tables import MailboxRow
from coterie.server.worker.running_sum import Summands, sum_masked
from tests.empty_database import prepare

BOX = to_base64(os.urandom(100))


def with_database(folder: Path, work: Callable[[Database], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a database that is open."""

    async def whole() -> None:
        path = prepare(folder / "state") / "coterie.db"
        database = Database(sqlite_url(path), CoordinatorFaults(), Bell())
        try:
            await work(database)
        finally:
            await database.close()

    asyncio.run(whole())


async def rows(session: AsyncSession) -> int:
    """How many rows the mailbox has."""
    return int((await session.execute(select(func.count()).select_from(MailboxRow))).scalar_one())


def test_a_thousand_clients_with_48_neighbours_cost_a_row_each(tmp_path: Path) -> None:
    clients = 1000
    degree = parameters(clients, corrupt=0.1, dropout=0.1, mode="semi_honest").neighbours
    assert degree == 48

    async def work(database: Database) -> None:
        async with database.write("message") as session:
            for place in range(clients):
                boxes = {str(near): BOX for near in neighbours(place, clients, degree)}
                await mailbox.put(session, "att", "shares", f"{place:04}", json.dumps({"boxes": boxes}))
        async with database.read() as session:
            assert await rows(session) == await mailbox.count(session, "att", "shares") == clients
            near = [f"{place:04}" for place in neighbours(7, clients, degree)]
            found = await mailbox.bundles(session, "att", "shares", near)
            assert sorted(found) == sorted(near)
            assert all(json.loads(bundle)["boxes"]["7"] == BOX for bundle in found.values())
        async with database.write("cleanup") as session:
            await mailbox.put(session, "other", "shares", "0000", "{}")
            await mailbox.empty(session, "att")
            assert await rows(session) == 1

    with_database(tmp_path, work)


def test_no_sender_leaves_more_than_its_share(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        async with database.write("message") as session:
            await mailbox.put(session, "att", "shares", "fits", "x" * mailbox.BUNDLE_LIMIT)
            with pytest.raises(TooLarge, match="one sender"):
                await mailbox.put(session, "att", "shares", "more", "x" * (mailbox.BUNDLE_LIMIT + 1))
        async with database.read() as session:
            assert await mailbox.senders(session, "att", "shares") == ["fits"]

    with_database(tmp_path, work)


SPEC = VectorSpec((Segment("counts", 5, 32), Segment("delta", 1000, 20)))
HEADER = MaskedHeader(attempt="att", task="any", plan="aa" * 32, base="bb" * 32, spec=SPEC.digest)


def vectors(folder: Path, count: int, spec: VectorSpec = SPEC) -> tuple[dict[str, Path], npt.NDArray[np.uint32]]:
    """So many masked vectors as files, and their sum."""
    random = np.random.default_rng(5)
    files: dict[str, Path] = {}
    total = np.zeros(spec.length, np.uint32)
    for number in range(count):
        vector = reduced(random.integers(0, 1 << 32, spec.length, np.uint32), spec)
        header = MaskedHeader("att", f"task{number}", HEADER.plan, HEADER.base, spec.digest)
        files[header.task] = folder / header.task
        files[header.task].write_bytes(encode_masked(header, pack(vector, spec)))
        total += vector
    return files, reduced(total, spec)


def summands(header: MaskedHeader, spec: VectorSpec, files: Mapping[str, Path]) -> Summands:
    """The vectors in these files."""
    return Summands(header, spec, frozenset(files), lambda task: files[task].read_bytes())


def test_the_running_sum_names_what_it_holds_and_is_made_anew_where_it_cannot_be_used(tmp_path: Path) -> None:
    files, total = vectors(tmp_path, 6)
    cache = tmp_path / "cache"
    some = dict(list(files.items())[:3])
    assert sum_masked(cache, summands(HEADER, SPEC, some)).holds == tuple(sorted(some))
    for path in some.values():
        path.rename(path.with_suffix(".away"))  # what the cache holds is not read again
    made = sum_masked(cache, summands(HEADER, SPEC, files))
    assert made.holds == tuple(sorted(files))
    assert np.array_equal(reduced(made.total, SPEC), total)
    for path in some.values():
        path.with_suffix(".away").rename(path)
    others = VectorSpec((Segment("other", SPEC.length, 20),))
    other_files, other_total = vectors(tmp_path, 2, others)
    spoilt = (
        lambda: cache.unlink(),
        lambda: cache.write_bytes(cache.read_bytes()[:-4]),
        lambda: cache.write_bytes(b"no tensor file"),
        lambda: None,  # it holds what was dropped since
    )
    for spoil in spoilt:
        spoil()
        left = {task: path for task, path in files.items() if task not in other_files}
        again = sum_masked(cache, summands(HEADER, SPEC, left))
        fresh = sum_masked(tmp_path / f"fresh-{len(left)}", summands(HEADER, SPEC, left))
        assert np.array_equal(again.total, fresh.total)
        sum_masked(cache, summands(HEADER, SPEC, left))
    header = MaskedHeader("att", "any", HEADER.plan, HEADER.base, others.digest)
    another = sum_masked(cache, summands(header, others, other_files))
    assert np.array_equal(reduced(another.total, others), other_total)
    files["task5"].write_bytes(files["task4"].read_bytes())
    with pytest.raises(UpdateRefused) as caught:
        sum_masked(tmp_path / "new", summands(HEADER, SPEC, {"task5": files["task5"]}))
    assert caught.value.reason == "wrong_task"


def test_memory_of_the_running_sum_does_not_grow_with_the_clients(tmp_path: Path) -> None:
    spec = VectorSpec((Segment("delta", 100_000, 20),))
    header = MaskedHeader("att", "any", HEADER.plan, HEADER.base, spec.digest)
    files, _ = vectors(tmp_path, 24, spec)
    peaks: list[int] = []
    for count in (3, 24):
        tracemalloc.start()
        sum_masked(tmp_path / f"cache{count}", summands(header, spec, dict(list(files.items())[:count])))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.1 * peaks[0]


def terms(fewest: int, most: int) -> SecureTerms:
    """An attempt of at least and at most so many clients."""
    counts = SecureSection(name=COUNTS, encoding="exact", values=len(COUNTED), bits=32, top=1)
    return SecureTerms(
        attempt="att_" + "0" * 32, mode="semi_honest", corrupt=0.0, dropout=0.2, min_clients=fewest, max_clients=most,
        weight_cap=1, sections=(counts,), noise=None, phase_ms=1000,
    )  # fmt: skip


TASK = Task(
    id="task_" + "0" * 32, device="dev_" + "0" * 32, experiment="exp_" + "0" * 32, round=1, kind="train",
    plan=PlanRef(id="aa" * 32, signature="A" * 86 + "==", signer="bb" * 32), model=BlobRef(sha256="cc" * 32, size=1),
    frozen=None, hyper={}, codecs=("float32",), lease_ms=1, weight_cap=1, upload_limit=1, seed=0, edge=None,
)  # fmt: skip


def advertised(asked: SecureTerms, number: int, key: SigningKey) -> tuple[client.ClientState, Advertised]:
    """A client that brings its keys."""
    device = f"dev_{number:032x}"
    state, keys = client.begin(asked, device=device, plan=TASK.plan.id, model=model_digest(TASK), identity=key, floor=5)
    return state, Advertised(device, key.public, keys)


def test_who_brings_keys_that_cannot_be_used_is_not_in_the_roster_and_the_others_are() -> None:
    asked = terms(5, 8)
    found = [advertised(asked, number, SigningKey.generate())[1] for number in range(6)]
    stolen = Advertised("dev_" + "f" * 32, SigningKey.generate().public, found[0].keys)
    small = found[5].keys.model_copy(update={"mask_key": "00" * 32})
    machine = begin(asked, TASK, [stolen, *found[:5], Advertised(found[5].device, found[5].identity, small)])
    assert isinstance(machine, Machine)
    assert set(machine.places) == {each.device for each in found[:5]} and len(machine.awaited) == 5
    assert Machine.from_text(to_text(machine.state)) == machine
    failed = begin(asked, TASK, [stolen, *found[:4]])
    assert isinstance(failed, Failed) and failed.cause == "too_few_clients"


def test_messages_in_any_order_end_a_phase_alike() -> None:
    asked, keys = terms(5, 6), [SigningKey.generate() for _ in range(6)]
    pairs = [advertised(asked, number, key) for number, key in enumerate(keys)]
    machine = begin(asked, TASK, [each for _, each in pairs])
    assert isinstance(machine, Machine)
    places = {entry.device: entry.position for entry in machine.state.entries}
    boxes = {
        place: json.dumps({"commitment": "cc" * 32, "boxes": {str(near): BOX for near in machine.state.near(place)}})
        for place in places.values()
    }
    five = dict(list(boxes.items())[:5])
    ends = [machine.close(said) for said in (five, dict(reversed(five.items())))]
    assert ends[0] == ends[1] and isinstance(ends[0], Machine) and ends[0].phase == "masked"
    assert len(ends[0].awaited) == 5
    few = machine.close(dict(list(boxes.items())[:4]))
    assert isinstance(few, Failed) and few.cause == "too_few_dealt"
    machine.check(0, Shares.model_validate_json(boxes[0]))
    assert not machine.state.dealt
