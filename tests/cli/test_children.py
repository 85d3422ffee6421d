"""A child process ends with its parent, however that one ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_flow import hear_interrupts

from coterie.cli.children import age, child
from tests.patience import patience

# A parent whose child tells its pid and then waits for its standard input to close, as the coordinator and clients do.
CHILD = "import os, sys\nprint(os.getpid(), flush=True)\nwhile os.read(0, 1): pass\n"
PARENT = """
import os, sys, time
from pathlib import Path
from coterie.cli.children import child, interrupt_on_termination
interrupt_on_termination()
with child("patient", [], log=Path("log"), environment=os.environ) as process:
    print(process.stdout.readline().strip(), flush=True)
    time.sleep(60)
"""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_child_is_left(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "patient.py").write_text(CHILD, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=hear_interrupts,
    )
    with parent:
        line = parent.stdout.readline() if parent.stdout else ""
        pid = int(line)
        assert _lives(pid)
        parent.send_signal(how)
        parent.wait(patience(60))
    deadline = time.monotonic() + patience(60)
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(pid)


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deaf.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    monkeypatch.setattr("coterie.cli.children.GRACE_S", 0.2)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with child("deaf", [], log=tmp_path / "log", environment=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    assert process.returncode == -signal.SIGKILL


def test_age_counts_from_the_start_of_the_process() -> None:
    program = "import time; time.sleep(0.3); from coterie.cli.children import age; print(age())"
    before = time.monotonic()
    told = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert 0.29 < told < time.monotonic() - before + 0.05
    assert age() > 0
