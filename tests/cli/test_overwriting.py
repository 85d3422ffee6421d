"""What a command made before is not lost to the next one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_simulation_keeps_the_folder_of_the_one_before(coterie: Callable[..., Any], tmp_path: Path) -> None:
    assert coterie("new", "project").code == 0
    project = tmp_path / "project"

    def simulate(*words: str) -> Any:
        done = coterie("simulate", "experiment.py", "--rounds", "1", *words, cwd=project)
        assert done.code == 0, done.err
        return done

    assert "earlier run" not in simulate().out
    simulations = project / ".coterie" / "simulations"
    before = (simulations / "machines" / "infer.onnx").read_bytes()
    told = simulate("--seed", "7").out
    assert "machines-1" in told and "--resume" in told
    assert (simulations / "machines-1" / "infer.onnx").read_bytes() == before
    assert (simulations / "machines" / "infer.onnx").read_bytes() != before
    simulate()
    assert (simulations / "machines-2" / "checkpoint.json").is_file()
    assert "earlier run" not in simulate("--resume").out
