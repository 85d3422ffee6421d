"""SIGKILL at every point of a party, and of both and their coordinator in one exchange: each message arrives once, in
its order, and whole, and the reports of both agree.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from typing import Any

from party_pair import REPORT, SIZES, body
from sdk_kit import Coordinator, clean_environment, coordinator_process

from coterie.client_sdk.control.control import Control
from coterie.client_sdk.party.faults import PartyFaults
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import PartyRole, SessionCreate, fingerprint
from coterie.protocol.session_report import read_report
from tests.patience import patience
from tests.ports import steady_port

SCRIPT = Path(__file__).parent / "party_pair.py"
ROLES = ("owner", "feature")
POINTS = tuple(PartyFaults.points)


def exchanged(coordinator: Coordinator, folder: Path, lives: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Two parties that are killed at these points, one after the other, exchange everything."""
    asked = SessionCreate(
        name="killed",
        roles=(PartyRole(name="owner", party="Clinic"), PartyRole(name="feature", party="Registry")),
    )
    with Control(coordinator.url, token=coordinator.token) as control:
        tokens = control.make_session(asked).tokens
    orders = [word for role, points in zip(ROLES, lives, strict=True) for word in (tokens[role], ",".join(points))]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), coordinator.url, str(folder), *orders],
        env=clean_environment(PYTHONPATH=os.pathsep.join((str(SCRIPT.parent), str(SCRIPT.parents[2])))),
        capture_output=True,
        text=True,
        timeout=patience(240),
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["codes"] == [[*([-signal.SIGKILL] * len(points)), 0] for points in lives], done.stderr
    for other, received in zip(reversed(ROLES), told["received"], strict=True):
        assert received == {str(number): sha256_hex(body(other, number)) for number in range(len(SIZES))}
    reports = [read_report((folder / f"party-{place}" / REPORT).read_bytes(), REPORT) for place in range(len(ROLES))]
    pins = {report.party: fingerprint(report.identity) for report in reports}
    assert audit_reports(reports, pins) == ReportAudit((), ())
    assert [lane.messages for report in reports for lane in report.lanes] == [len(SIZES)] * 4


def test_a_party_killed_at_every_point_sends_and_receives_everything_once(tmp_path: Path) -> None:
    with coordinator_process(tmp_path) as here:
        exchanged(here, tmp_path, (POINTS, ()))


# How each life of the coordinator ends. Whatever came before, a large message is still to be posted when the first
# life begins, a last one when the second does, and its acknowledgement when the third does. So with PARTIES: a party
# that was killed at one point has the next before it.
LIVES = ("posted_blob.after_sync:1", "posted.after_commit:2", "acknowledged.before_commit:1", "")
PARTIES = (("sealed", "accepted", "opening", "worked_in"), ("sending", "sent"))


def test_both_parties_and_their_coordinator_killed_in_one_exchange_lose_nothing(tmp_path: Path) -> None:
    port = str(steady_port())
    begun: Queue[Coordinator] = Queue()
    over = threading.Event()
    ends: list[int] = []

    def live() -> None:
        for fault in LIVES:
            with coordinator_process(tmp_path, fault=fault, port=port) as here:
                begun.put(here)
                if fault:
                    ends.append(here.process.wait())
                else:
                    over.wait(patience(240))

    lives = threading.Thread(target=live, daemon=True)
    lives.start()
    try:
        exchanged(begun.get(timeout=patience(60)), tmp_path, PARTIES)
    finally:
        over.set()
        lives.join(patience(60))
    assert ends == [-signal.SIGKILL] * (len(LIVES) - 1)
