"""A demo that is interrupted or killed leaves no process."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_kit import await_none_in, processes_in
from test_flow import hear_interrupts

from tests.patience import patience


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(
    tmp_path: Path, environment: dict[str, str], how: signal.Signals
) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "coterie.cli.main", "demo", "--json", "--rounds", "100"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    with demo:
        for line in demo.stdout or ():
            if json.loads(line)["event"] == "round":
                break
        assert len(processes_in(tmp_path)) > 11
        demo.send_signal(how)
        demo.wait(patience(30))
    assert demo.returncode == (130 if how != signal.SIGKILL else -signal.SIGKILL)
    assert await_none_in(tmp_path, 15) == []
