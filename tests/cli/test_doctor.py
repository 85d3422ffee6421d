"""`coterie doctor` on execution providers: a table, a plan's graphs on each, and what a device remembers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.failures import BAD_INPUT, FAILED
from coterie.cli.output import Output
from coterie.client_sdk.device.store import DeviceStore
from coterie.compute.runtime.devices import provider_named
from coterie.compute.runtime.quarantine import failure
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.verdict import Identity, Verdict

Coterie = Callable[..., Any]
EXPERIMENT = """
from dataclasses import replace
from coterie import Experiment, RoundPolicy, ExternalModel
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.compute import nn
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adam

schema = DataSchema((Feature(name="x", shape=(4,), low=-10, high=10),), Label(name="y", low=0, high=2))
told = {"schema": schema, "batch_size": 8, "rounds": RoundPolicy(rounds=1, cohort=1, evaluate_every=0)}
experiment = Experiment(name="dense", model=mlp((4, 8, 3)), loss=softmax_cross_entropy, optimizer=adam(0.1), **told)


class FrozenFront(nn.Module):
    body = mlp((4, 8, 3))

    def specs(self):
        return {n: replace(s, role="frozen") if n.startswith("0.") else s for n, s in self.body.specs().items()}

    def __call__(self, params, x, mode=nn.EVAL):
        return self.body(params, x, mode)


frozen = Experiment(name="frozen", model=FrozenFront(), loss=softmax_cross_entropy, optimizer=adam(0.1), **told)
own = Experiment(name="own", model=ExternalModel({"w": (4, 3)}), **told)
"""


def test_every_provider_is_a_row_with_trust_coverage_and_the_time_of_a_step(inside: Coterie, tmp_path: Path) -> None:
    (tmp_path / "dense.py").write_text(EXPERIMENT, encoding="utf-8")
    done = inside("doctor", "--json", "--experiment", "dense.py")
    assert done.code == 0, done.err
    (row,) = [event for event in done.events if event["event"] == "provider"]
    assert row["provider"] == CPU and row["trusted"] and row["before"] == "" and row["step_ms"] > 0
    assert set(row["recipes"].values()) == {"agrees"} and "step of attention" in row["recipes"]
    assert row["coverage"] == dict.fromkeys(("begin", "train", "finish", "eval", "infer"), "every node")
    refused = inside("doctor", "--experiment", "dense.py:own")
    assert refused.code == BAD_INPUT and "error[plan_external]" in refused.err


def test_a_devices_memory_is_read_and_brought_up_to_date(coterie: Coterie, tmp_path: Path) -> None:
    store = DeviceStore(tmp_path / "device")
    lost = failure(provider_named(CPU), "the device is lost")
    elsewhere = Verdict(Identity("Other", "1", "d", "r"), trusted=False, reason="differs in 'add'")
    for verdict in (lost, elsewhere):
        store.verdicts.record(verdict)
    store.close()
    done = coterie("doctor", "--json", "--store", "device")
    (row,) = [event for event in done.events if event["event"] == "provider"]
    assert row["trusted"] and row["before"] == "quarantined: the device is lost"
    store = DeviceStore(tmp_path / "device")
    assert store.verdicts.recall() == {
        lost.identity: Verdict(lost.identity, trusted=True),
        elsewhere.identity: elsewhere,
    }
    busy = coterie("doctor", "--store", "device")
    assert "error[store_in_use]" in busy.err
    store.close()
    absent = coterie("doctor", "--store", "nowhere")
    assert absent.code == BAD_INPUT and "error[store_absent]" in absent.err


CHIPS = """
import ctypes
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.executable import Executable

def _ends(data):
    ctypes.string_at(0)

HONEST = Provider("HonestExecutionProvider", "1.0", open=lambda data: Executable(data).run)
ENDING = Provider("EndingExecutionProvider", "1.0", open=_ends)
NOTHING = 3
"""
LIBRARY = """
def get_library_path():
    {what}
def get_ep_name():
    return "X"
"""
LIBRARIES = {
    "absent": ("return '/nowhere/lib.so'", ""),
    "text": ("return __file__", ""),
    "foreign": ("import _ctypes; return _ctypes.__file__", ""),
    "raising": ("raise OSError('no licence')", "OSError: no licence"),
    "ending": ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
}


def package(folder: Path, name: str, source: str, **files: str) -> None:
    """An installed package of one module, as an installer would write it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name.replace('-', '_')}.py").write_text(source, encoding="utf-8")
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    for file, content in files.items():
        (info / f"{file}.txt").write_text(content, encoding="utf-8")


def test_packages_that_are_broken_or_end_their_process_are_rows_and_hide_no_other(
    coterie: Coterie, tmp_path: Path
) -> None:
    points = "[coterie.providers]\na = chips:HONEST\nb = chips:ENDING\nc = chips:NOTHING\n"
    package(tmp_path / "site", "chips", CHIPS, entry_points=points)
    for name, (what, _) in LIBRARIES.items():
        package(tmp_path / "site", f"onnxruntime-ep-{name}", LIBRARY.format(what=what))
    (tmp_path / "dense.py").write_text(EXPERIMENT, encoding="utf-8")
    path = str(tmp_path / "site")
    done = coterie("doctor", "--json", "--experiment", "dense.py:frozen", PYTHONPATH=path)
    assert done.code == 0, done.err
    rows = {event["provider"]: event for event in done.events if event["event"] == "provider"}
    assert set(rows) == {CPU, "HonestExecutionProvider", "EndingExecutionProvider"}
    honest, ending = rows["HonestExecutionProvider"], rows["EndingExecutionProvider"]
    assert honest["trusted"] and set(honest["coverage"].values()) == {"every node"}
    assert honest["step_ms"] > 0 and honest["front_ms"] > 0 and rows[CPU]["front_ms"] is None
    assert not ending["trusted"] and "the process that tried it ended by SIGSEGV" in ending["reason"]
    assert (ending["coverage"], ending["step_ms"], ending["fault"]) == ({}, None, "in quarantine")
    checks = {event["name"]: event for event in done.events if event["event"] == "check"}
    assert "chips:NOTHING is no Provider" in checks["provider of a package"]["detail"]
    for name, (_, said) in LIBRARIES.items():
        check = checks[f"plug-in onnxruntime-ep-{name} 1.0"]
        assert check["ok"] is None and said in check["detail"] and "the process that registered it" in check["detail"]


def test_every_line_of_the_tables_fits_a_terminal_of_80_columns(inside: Coterie, tmp_path: Path) -> None:
    (tmp_path / "dense.py").write_text(EXPERIMENT, encoding="utf-8")
    shown = inside("doctor", "--experiment", "dense.py", COLUMNS="80").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    for graph in ("begin", "train", "finish", "eval", "infer"):
        assert any(line.split() == [graph, "every", "node"] for line in shown.splitlines())
    assert "Only the CPU computes here" in shown and shown.endswith("Ready.\n")


def test_builds_of_the_runtime_under_other_names_are_the_runtime(coterie: Coterie, tmp_path: Path) -> None:
    package(tmp_path / "site", "onnxruntime-openvino", "", top_level="onnxruntime\n")
    done = coterie("doctor", "--json", PYTHONPATH=str(tmp_path / "site"))
    (check,) = [event for event in done.events if event.get("name") == "onnxruntime"]
    assert done.code == 0 and check["ok"] is None
    assert "1.0 (onnxruntime-openvino)" in check["detail"] and "one hides the other" in check["detail"]
    assert check["fix"].startswith("Run: pip uninstall onnxruntime onnxruntime-openvino;")


@pytest.mark.parametrize("source", ["", "raise ImportError('libonnxruntime.so: no such file')"])
def test_a_damaged_runtime_is_a_finding(coterie: Coterie, tmp_path: Path, source: str) -> None:
    """What is left when one of two packages with the same files is removed."""
    package(tmp_path / "site", "onnxruntime", source)
    done = coterie("doctor", "--json", PYTHONPATH=str(tmp_path / "site"))
    (check,) = [event for event in done.events if event.get("name") == "onnxruntime"]
    assert (done.code, check["ok"], done.events[-1]["failed"]) == (FAILED, False, ["onnxruntime"])
    assert "damaged" in check["detail"] and check["fix"] == "Run: pip install --force-reinstall onnxruntime"
    assert "Traceback" not in done.err


def test_cells_are_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=False).table(("fix",), [('pip install "coterie[server]"',), ("[/x] [bold]",)], empty="")
    shown = capsys.readouterr().out
    assert "coterie[server]" in shown and "[/x] [bold]" in shown
