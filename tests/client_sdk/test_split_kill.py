"""SIGKILL at every point of a role that learns: both roles end with the bits of those that nobody killed, and with
reports that agree.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import split_role
from sdk_kit import Coordinator, clean_environment
from split_sessions import both, tokens_of

from coterie.client_sdk.party.faults import LearnerFaults, PartyFaults
from coterie.protocol.disclosures import MESSAGES_STEP
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import fingerprint
from coterie.protocol.session_report import read_report
from tests.patience import patience

SCRIPT = Path(split_role.__file__)

# Where each life of each role ends: every point of a learner, and between them points of its party.
LIVES = {
    "owner": ("sealed:3", "begun:1", "agreed:1", "message_kept:2", "checkpoint_kept:2", "worked_in:4", "accepted:2"),
    "feature": ("begun:1", "opening:2", "agreed:1", "message_kept:3", "checkpoint_kept:3", "call_done:1", "sent:1"),
}


def fault_of(text: str) -> dict[str, str]:
    """The variable that asks for a fault."""
    hooks = (PartyFaults, LearnerFaults)
    return {hook.variable: text for hook in hooks if text.partition(":")[0] in hook.points}


def test_roles_that_are_killed_end_with_the_bits_of_those_that_are_not(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    def run(folder: Path, tokens: dict[str, str], lives: dict[str, tuple[str, ...]]) -> tuple[Any, Any]:
        def live(role: str) -> Any:
            done: subprocess.CompletedProcess[str] | None = None
            for fault in (*lives[role], ""):
                done = subprocess.run(
                    [sys.executable, str(SCRIPT), coordinator.url, str(folder / role), tokens[role], role],
                    env=clean_environment(PYTHONPATH=str(SCRIPT.parents[2]), **fault_of(fault)),
                    capture_output=True,
                    text=True,
                    timeout=patience(240),
                )
                assert done.returncode == (-signal.SIGKILL if fault else 0), (fault, done.stderr)
            return None if done is None else json.loads(done.stdout)

        return both(lambda: live("owner"), lambda: live("feature"))

    points = {fault.partition(":")[0] for lives in LIVES.values() for fault in lives}
    assert points >= LearnerFaults.points.keys()
    calm = run(
        tmp_path / "calm",
        tokens_of(coordinator),
        {
            "owner": (),
            "feature": (
                "begun:1",
                "opening:2",
                "agreed:1",
                "message_kept:3",
                "checkpoint_kept:3",
                "call_done:1",
                "sent:1",
            ),
        },
    )
    killed = run(tmp_path / "killed", tokens_of(coordinator), LIVES)
    assert calm == killed
    reports = [read_report((tmp_path / "killed" / role / split_role.REPORT).read_bytes(), role) for role in LIVES]
    pins = {report.party: fingerprint(report.identity) for report in reports}
    assert audit_reports(reports, pins) == ReportAudit((), ())
    assert all(step.is_done and step.step != MESSAGES_STEP for report in reports for step in report.steps)
    assert [epoch["examples"] for epoch in calm[0]["epochs"]] == [split_role.ROWS] * split_role.EPOCHS
