"""Run every command of a plain install for real: python plain.py PLAIN_BIN SERVER_BIN, in an empty folder.

PLAIN_BIN is the bin folder of an environment with the bare wheel; SERVER_BIN that of one with the extra `server`, which
lends only the coordinator.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

PLAIN = Path(sys.argv[1]).resolve() / "coterie"
SERVER = Path(sys.argv[2]).resolve() / "coterie"
WAIT_S = 120


def require(holds, what):
    """End with what was found unless it is as it must be."""
    if not holds:
        sys.exit(f"not as promised: {what}")


def run(*words, code=0, **environment):
    """One command of the plain install, which must end with this code; its JSON lines."""
    done = subprocess.run(
        [PLAIN, *words],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    if done.returncode != code:
        sys.exit(f"coterie {' '.join(words)}: exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    shown = ["…" if before == "--token" else word for before, word in zip(("", *words), words, strict=False)]
    print("ok  coterie", *shown)
    return [json.loads(line) for line in done.stdout.splitlines()] if "--json" in words else []


@contextmanager
def running(*command, **environment):
    """A process that stays; Ctrl-C at the end, and it must end well."""
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            sys.exit(f"{command} did not end after Ctrl-C")


def main():
    run("--version")
    run("doctor")
    run("doctor", "--json")
    for lacking in ("server", "demo"):
        (line,) = run(lacking, "--json", code=4)
        require(line["code"] == "extra_missing", line)
        require(f"coterie[{lacking}]" in line["hint"], line)
    run("new", "project")
    os.chdir("project")
    summary = run("simulate", "experiment.py", "--rounds", "2", "--json")[-1]
    require(summary["rounds"] == 2, summary)
    require(Path(summary["model"]).is_file(), summary)

    with running(SERVER, "server", "--port", "0", "--json", "--folder", "state") as server:
        ready = json.loads(server.stdout.readline())
        where = {"COTERIE_URL": ready["url"], "COTERIE_TOKEN": Path(ready["admin_token_file"]).read_text().strip()}
        submitted = run("submit", "experiment.py", "--rounds", "2", "--json", **where)[0]
        join = (PLAIN, "client", ready["url"], "--token", submitted["token"], "--json")
        with (
            running(*join, "--name", "one", "--data", "data/site-1.csv"),
            running(*join, "--name", "two", "--data", "data/site-2.csv"),
        ):
            *_, finished = run("watch", "machines", "--json", **where)
            require(finished["rounds"] == 2, finished)
            asked = run("query", "count", "state", "--devices", "2", "--json", **where)[-1]
            require(asked["answer"]["rows"] == 2 * 240, asked)
            run(
                "client",
                ready["url"],
                "--token",
                submitted["token"],
                "--name",
                "three",
                "--data",
                "data/site-3.csv",
                "--dry-run",
                "--json",
            )
        for what in ("experiments", "populations", "devices"):
            require(run("list", what, "--json", **where), f"an empty list of {what}")
        require(len(run("models", "list", "machines", "--json", **where)) == 3, "three model versions")
        run("models", "download", "machines", "infer.onnx", **where)
        run("models", "download", "machines", "weights.safetensors", "--form", "weights", **where)
        again = run("submit", "experiment.py", "--initial", "weights.safetensors", "--json", **where)[0]
        run("stop", again["experiment"], **where)
    run("list", code=3, **where)
    score = (
        "import numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession('infer.onnx')\n"
        "row = numpy.array([[65, 5.5, 2.0, 12.0]], numpy.float32)\n"
        "(scores,) = session.run(None, {session.get_inputs()[0].name: row})\n"
        "assert scores.argmax() == 1, scores\n"
    )
    subprocess.run([PLAIN.parent / "python", "-c", score], check=True)
    print("ok  the downloaded model in plain onnxruntime")


if __name__ == "__main__":
    main()
