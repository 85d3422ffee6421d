"""A runtime in a process of its own, which has no coterie in it, runs a file or says in its words why not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute.export import bare_runs, run_bare
from coterie.errors import GraphRefused, InternalError
from tests.compute.export.files import CONV, FIXTURES, rows


def test_what_a_bare_runtime_cannot_run_is_said_in_its_words() -> None:
    wrong = {"x": rows(1, 3, 4, 4)}
    with pytest.raises(GraphRefused, match="bare ONNX Runtime does not run the file: .*INVALID_ARGUMENT") as refused:
        run_bare([CONV], [wrong])
    assert refused.value.reason == "bare_runtime"


def test_outputs_that_are_no_numbers_can_be_left_out() -> None:
    """The labels of this classifier are words, its probabilities a dictionary for each row."""
    file, x = FIXTURES / "sk_text_13.onnx", rows(2, 5)
    with pytest.raises(GraphRefused, match="no array of numbers"):
        run_bare([file], [{"x": x}])
    (found,) = run_bare([file], [{"x": x}], outputs=["output_probability"])
    np.testing.assert_allclose(found.outputs["output_probability"][0].sum(axis=1), 1.0, rtol=1e-5)


def test_a_process_that_has_coterie_in_it_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    told: dict[str, Any] = {"onnxruntime": "0", "names": [[]], "milliseconds": [[]], "modules": ["coterie", "numpy"]}
    script.write_text(f"print({json.dumps(json.dumps(told))})", encoding="utf-8")
    monkeypatch.setattr(bare_runs, "_SCRIPT", script)
    with pytest.raises(InternalError, match="has loaded coterie"):
        run_bare([CONV], [{"x": rows(1, 2, 4, 4)}])
    script.write_text("raise SystemExit(3)", encoding="utf-8")
    with pytest.raises(InternalError, match="ended with 3"):
        run_bare([CONV], [{"x": rows(1, 2, 4, 4)}])
