"""A real Ray cluster on this machine. That it gives what threads give says `test_hosts`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from ray_kit import NEEDS_RAY
from simulation_kit import experiment, rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.errors import DataError
from coterie.protocol.conversion import to_json
from coterie.protocol.tensors import encode_tensors
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines.job import raise_reported
from coterie.simulation.engines.naming import PLAN_TRAINER
from coterie.simulation.engines.remote import Remote

# Not imported here: the engine imports Ray itself, and says then where it may listen.
pytestmark = NEEDS_RAY


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cluster_of_this_machine_listens_to_nobody_else_and_leaves_nothing_behind() -> None:
    """In a process of its own, since Ray decides where to listen when it is first imported."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-c", _LISTENERS, str(Path(__file__).parent)],
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["folder"] is True
        assert told["loopback"] and all(told["loopback"])
        # ONNX Runtime keeps a file of its own among the temporary ones.
        assert [left.name for left in Path(folder).iterdir() if left.name != ".ses"] == []


def test_a_worker_answers_with_the_error_that_a_device_has(tmp_path: Path) -> None:
    """Without a cluster: the same object that an actor holds."""
    bad = rows()
    bad["x"][3, 0] = np.nan
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **bad)
    compiled = compile_plan(experiment())
    remote = Remote(compiled.plan.manifest.data, compiled.plan.graphs, encode_tensors({}), PLAN_TRAINER)
    assignment = to_json(Assignment(experiment="tiny", round=1, base="", hyper={}, seed=0, weight_cap=100))
    job = {"kind": "train", "number": 0, "source": str(tmp_path / "bad.npz"), "assignment": assignment}
    weights = np.frombuffer(compiled.initial_bytes, np.uint8)
    answer, _ = remote.perform(json.dumps(job), weights, encode_tensors({}), encode_tensors({}))
    with pytest.raises(DataError, match="bad.npz.*row 4"):
        raise_reported(json.loads(answer))


# What the processes below this one listen at while a round is done, as /proc tells it, and whether Ray wrote where it
# was told to.
_LISTENERS = """
import ipaddress, json, os, socket, struct, sys, tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from simulation_kit import CLIENTS, experiment
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate


def family():
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(status.parent.name)] = int(words[1])
    found = {os.getpid()}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def sockets(process):
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            yield os.readlink(link)
        except OSError:
            continue


def is_loopback(text):
    words = [struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def look(event):
    ours = {name for process in family() for name in sockets(process)}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in ours:
                told["loopback"].append(is_loopback(words[1].partition(":")[0]))
    told["folder"] = told["folder"] or any(Path(tempfile.gettempdir()).glob("coterie-ray-*/session_*"))


told = {"loopback": [], "folder": False}
simulate(experiment(rounds=RoundPolicy(rounds=1, cohort=2)), CLIENTS, engine="ray:local", on_event=look)
print(json.dumps(told))
"""
