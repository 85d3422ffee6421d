"""Prove the execution providers that this machine can have, each in an environment of its own.

    make test-providers [ARGS="openvino webgpu"]          those environments alone
    make test-providers ARGS="--require openvino"         one that cannot be made here is a failure, too
    make test-providers ARGS=--record                     write down what was proved, in tests/providers/proven.json

Says of each what was proved, what failed and why, or why it was not tried; ends with 1 when something that the list of
proven things has is no longer so. The first run installs about 400 MB into .coterie/providers.
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.providers.environments import ENVIRONMENTS, ROOT, Environment, NotHere
from tests.providers.judging import Judgement, judged

PROVEN = Path(__file__).with_name("proven.json")
# Twenty times what the slowest environment needs.
PATIENCE_S = 1800.0


def main() -> int:
    """0, or 1 for a regression or for a required environment that cannot be made."""
    names = [environment.name for environment in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help=f"of {', '.join(names)}; all")
    parser.add_argument("--require", nargs="+", default=[], choices=names)
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.environments) - set(names)):
        parser.error(f"there is no environment {unknown[0]!r}; there are {', '.join(names)}")
    proven: dict[str, Any] = json.loads(PROVEN.read_text(encoding="utf-8"))
    judgements: list[Judgement] = []
    for environment in ENVIRONMENTS:
        if asked.environments and environment.name not in asked.environments:
            continue
        print(f"{environment.name}: {', '.join(environment.packages)} ...", flush=True)
        found, why = _proof(environment)
        judgement = judged(environment.name, proven.get(environment.name), found, why)
        print("  " + "\n  ".join(judgement.lines), flush=True)
        judgements.append(judgement)
        if asked.record and found is not None and found["proved"]:
            proven[environment.name] = {name: found[name] for name in proven_fields(found)}
    if asked.record:
        PROVEN.write_text(json.dumps(proven, indent=2) + "\n", encoding="utf-8")
    proved = [judgement.name for judgement in judgements if judgement.state == "proved"]
    print(f"Proved on this machine ({platform.system()} {platform.machine()}): {', '.join(proved) or 'nothing'}.")
    absent = [each.name for each in judgements if each.state == "not tried" and each.name in asked.require]
    failed = [each.name for each in judgements if each.state == "regressed"]
    for what, which in (("REGRESSED", failed), ("MISSING", absent)):
        if which:
            print(f"{what}: {', '.join(which)}.")
    return 1 if failed or absent else 0


def proven_fields(found: Mapping[str, Any]) -> list[str]:
    """What the list remembers of a proof: what the same machine, or another one, has to reach again."""
    return [name for name in found if name not in ("seconds", "cpu", "proved", "wrong", "steps")]


def _proof(environment: Environment) -> tuple[Mapping[str, Any] | None, str]:
    """What the environment's own process found; or None, and why nothing was tried."""
    try:
        variables = environment.made()
    except NotHere as error:
        return None, str(error)
    arguments = [environment.provider, "--graphs", *environment.graphs, "--files", *environment.files]
    arguments += ["--times"] if environment.timed else []
    command = [str(environment.python), "-m", "tests.providers.prove", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=dict(variables), capture_output=True, text=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return {"proved": False, "wrong": [f"the process did not end within {PATIENCE_S:.0f} s"]}, ""
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        if "is not on this machine" in said:
            return None, said
        return {"proved": False, "wrong": [f"the process ended with {done.returncode}: {said}"]}, ""
    return json.loads(lines[-1]), ""


if __name__ == "__main__":
    sys.exit(main())
