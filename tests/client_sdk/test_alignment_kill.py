"""SIGKILL at every point of an alignment, at both parties: each calls again and is told the same, in one order."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import alignment_role
import pytest
from sdk_kit import Coordinator, clean_environment
from split_sessions import both, tokens_of

from coterie.client_sdk.party.faults import AlignmentFaults, PartyFaults
from tests.patience import patience

SCRIPT = Path(alignment_role.__file__)
# Where each life of each party ends: every point of an alignment, and between them points of its party.
LIVES = {
    "owner": ("begun:1", "sealed:1", "agreed:1", "blinded:1", "accepted:1", "taken:1", "worked_in:1", "result_kept:1"),
    "feature": ("begun:1", "taken:1", "acknowledged:1", "taken:1", "sent:1", "opening:1", "result_kept:1"),
}


def fault_of(text: str) -> dict[str, str]:
    """The variable that asks for a fault."""
    hooks = (PartyFaults, AlignmentFaults)
    return {hook.variable: text for hook in hooks if text.partition(":")[0] in hook.points}


@pytest.mark.parametrize("killed", ["owner", "feature", "both"])
def test_parties_that_are_killed_are_told_the_same(coordinator: Coordinator, tmp_path: Path, killed: str) -> None:
    tokens = tokens_of(coordinator, stages=("align",))

    def live(role: str) -> Any:
        done: subprocess.CompletedProcess[str] | None = None
        for fault in (*(LIVES[role] if killed in (role, "both") else ()), ""):
            done = subprocess.run(
                [sys.executable, str(SCRIPT), coordinator.url, str(tmp_path / role), tokens[role], role],
                env=clean_environment(PYTHONPATH=str(SCRIPT.parents[2]), **fault_of(fault)),
                capture_output=True,
                text=True,
                timeout=patience(240),
            )
            assert done.returncode == (-signal.SIGKILL if fault else 0), (fault, done.stderr)
        return None if done is None else json.loads(done.stdout)

    points = {fault.partition(":")[0] for lives in LIVES.values() for fault in lives}
    assert points >= AlignmentFaults.points.keys()
    one, other = both(lambda: live("owner"), lambda: live("feature"))
    assert one == other
    assert {*one} == {*alignment_role.IDS["owner"]} & {*alignment_role.IDS["feature"]}
