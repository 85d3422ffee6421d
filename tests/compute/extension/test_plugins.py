"""Packages add primitives, kernels and providers by entry points: found when asked, and told apart when broken."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import Registry, load_plugins, parse, use_registry
from coterie.compute.extension.providers import broken_providers, load_providers
from coterie.compute.extension.registry import active_registry
from coterie.compute.extension.trial import tried
from coterie.compute.runtime.conformance import conformance
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.session import CPU
from coterie.errors import ConfigurationError

TINY = """
from coterie.compute.extension.definition import primitive
from coterie.compute.extension.registry import Registry

@primitive("tiny.triple", inputs=("x",), outputs=("y",))
class triple:
    def infer_shape(x): return x
    def lower(x): return x * 3.0

PLUGIN = Registry()
PLUGIN.register(triple)
PLUGIN.register_kernel(triple, "float64", lambda x: x + x + x)
"""
FAKE = """
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.executable import Executable

HONEST = Provider("FakeExecutionProvider", "1.0", open=lambda data: Executable(data).run)

def _lie(data):
    run = Executable(data).run
    return lambda feeds: {name: value * value.dtype.type(1.01) for name, value in run(feeds).items()}

LIAR = Provider("LyingExecutionProvider", "1.0", open=_lie)

def _crash(data):
    raise RuntimeError("the driver is gone")

CRASHING = Provider("CrashingExecutionProvider", "1.0", open=_crash)
FORGETFUL = Provider("ForgetfulExecutionProvider", "1.0", open=lambda data: lambda feeds: {})
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a package and its metadata where Python finds them, as an installer would."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)

    def write(name: str, source: str, group: str, **points: str) -> None:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        info = tmp_path / f"{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n", encoding="utf-8")
        lines = [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        importlib.invalidate_caches()

    with use_registry(Registry()):
        yield write
    for name in set(sys.modules) - before:
        if name.startswith(("tiny", "other", "broken", "fake", "ending")):
            del sys.modules[name]


TEXT = 'input "x" %0: float32[2]\n%1: float32[2] = tiny.triple(%0) {}\noutput "y" %1\n'


@pytest.mark.capability("E4")
def test_e4_a_package_brings_a_primitive_and_a_kernel_without_a_rebuild(install: Callable[..., None]) -> None:
    install("tiny_plugin", TINY, "coterie.primitives", tiny="tiny_plugin:PLUGIN")
    assert "tiny_plugin" not in sys.modules and active_registry().find("tiny.triple") is None
    assert load_plugins() == ("tiny.triple",)
    assert load_plugins() == ("tiny.triple",)  # again: nothing changes
    triple = active_registry().primitives["tiny.triple"]
    assert triple(np.asarray([1.0, 2.0], np.float32)).numpy().tolist() == [3.0, 6.0]
    assert len(active_registry().kernels) == 1
    assert parse(TEXT).nodes[0].attributes["primitive"] is triple
    other = Registry()
    assert load_plugins(other) == ("tiny.triple",) and other.find("tiny.triple") is triple


def test_a_package_may_name_one_primitive_alone(install: Callable[..., None]) -> None:
    install("tiny_single", TINY, "coterie.primitives", tiny="tiny_single:triple")
    assert load_plugins() == ("tiny.triple",) and active_registry().kernels == {}


BROKEN: list[tuple[str, str, str]] = [
    ("import frobnicate", "broken_plugin:PLUGIN", "ModuleNotFoundError: No module named 'frobnicate'"),
    ("PLUGIN = 1 / 0", "broken_plugin:PLUGIN", r"ZeroDivisionError.*broken_plugin.py:1"),
    ("PLUGIN = 3", "broken_plugin:PLUGIN", "broken_plugin:PLUGIN is a int, not a primitive or a Registry"),
    ("", "broken_plugin:PLUGIN", "AttributeError"),
    ("", "broken_nowhere:PLUGIN", "ModuleNotFoundError"),
    (TINY.replace("tiny.triple", "exp"), "broken_plugin:PLUGIN", "'exp' is a primitive of the core"),
    (TINY + "3x", "broken_plugin:PLUGIN", "SyntaxError"),
]


@pytest.mark.capability("E4")
@pytest.mark.parametrize(("source", "value", "message"), BROKEN, ids=[b[2][:24] for b in BROKEN])
def test_e4_a_broken_package_is_named_and_keeps_no_other_out(
    install: Callable[..., None], source: str, value: str, message: str
) -> None:
    install("broken_plugin", source, "coterie.primitives", broken=value)
    install("tiny_plugin", TINY, "coterie.primitives", tiny="tiny_plugin:PLUGIN")
    with pytest.raises(
        ConfigurationError, match=f"plugin 'broken' of the package broken.plugin 0.1 .*{message}"
    ) as caught:
        load_plugins()
    assert "The fault is in that package, not in coterie." in str(caught.value)
    assert caught.value.reason == "plugin_broken"
    assert list(active_registry().primitives) == ["tiny.triple"]


def test_two_packages_cannot_have_one_name_and_the_second_adds_nothing(install: Callable[..., None]) -> None:
    more = "\nPLUGIN.register(primitive('other.more', inputs=('x',))(lambda x: x))"
    install("other_plugin", TINY + more, "coterie.primitives", zzz="other_plugin:PLUGIN")
    install("tiny_plugin", TINY, "coterie.primitives", tiny="tiny_plugin:PLUGIN")
    with pytest.raises(
        ConfigurationError,
        match=r"'zzz' of the package other.plugin 0.1 .*'tiny.triple' is already registered by the plugin 'tiny'",
    ):
        load_plugins()
    assert list(active_registry().primitives) == ["tiny.triple"]


@pytest.mark.capability("E6")
def test_e6_a_providers_plugin_is_discovered_tried_and_quarantined_when_it_lies(install: Callable[..., None]) -> None:
    install(
        "fake_chip", FAKE, "coterie.providers", a="fake_chip:HONEST", b="fake_chip:LIAR", c="fake_chip:CRASHING",
        d="fake_chip:FORGETFUL",
    )  # fmt: skip
    assert "fake_chip" not in sys.modules
    found = discover(load_providers())
    assert [provider.name for provider in found] == [
        *(provider.name for provider in discover()),
        *(f"{name}ExecutionProvider" for name in ("Fake", "Lying", "Crashing", "Forgetful")),
    ]
    fakes = [provider for provider in found if provider.open is not None]
    reports = [conformance(provider) for provider in fakes]
    assert [report.provider.name for report in reports if report.passed] == ["FakeExecutionProvider"]
    reasons = {report.provider.name: report.failures[0].error for report in reports if not report.passed}
    assert list(reasons) == [f"{name}ExecutionProvider" for name in ("Lying", "Crashing", "Forgetful")]
    assert reasons["LyingExecutionProvider"] is None  # it ran, and the numbers differ
    assert "the driver is gone" in (reasons["CrashingExecutionProvider"] or "")
    assert "missing" in (reasons["ForgetfulExecutionProvider"] or "")


def test_a_provider_is_also_passed_as_a_value_and_names_are_distinct() -> None:
    mine = Provider("Mine", "0", open=lambda data: lambda feeds: {})
    assert discover([mine])[-1] is mine and not conformance(mine).passed
    with pytest.raises(ConfigurationError, match=f"two providers called {CPU}"):
        discover([Provider(CPU, "0", open=lambda data: lambda feeds: {})])


BROKEN_CHIPS = [
    "PROVIDER = 3",
    "import nowhere",
    "PROVIDER = Provider('X', '0')",
    "PROVIDER = Provider('X', 0, open=len)",
    f"PROVIDER = Provider('{CPU}', '0', open=len)",
    "PROVIDER = HONEST",
]


@pytest.mark.parametrize("source", BROKEN_CHIPS)
def test_a_broken_provider_package_is_named_and_keeps_no_other_out(install: Callable[..., None], source: str) -> None:
    """What cannot be loaded, is no provider, tells no version, or has the name of another."""
    install("fake_chip", FAKE, "coterie.providers", a="fake_chip:HONEST")
    install("broken_chip", f"{FAKE}\n{source}", "coterie.providers", chip="broken_chip:PROVIDER")
    assert [provider.name for provider in load_providers()] == ["FakeExecutionProvider"]
    (error,) = broken_providers()
    assert error.reason == "plugin_broken"
    assert re.search("'chip' of the package broken.chip 0.1 .*fault is in that package", error.message)


ENDING = """
import ctypes, sys, time
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.executable import Executable

def _open(data):
    run, big = Executable(data).run, b"Conv" in data
    def ran(feeds):
        print("a word of the driver's", flush=True)
        if big:
            {what}
        return run(feeds)
    return ran

PROVIDER = Provider("EndingExecutionProvider", "1.0", open=_open)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("ctypes.string_at(0)", "the process that tried it ended by SIGSEGV"),
        ("sys.exit(3)", "the process that tried it ended with 3"),
        ("import os; os._exit(0)", "the process that tried it ended without a word"),
    ],
)
def test_a_provider_that_ends_its_process_has_failed_in_that_recipe(
    install: Callable[..., None], what: str, said: str
) -> None:
    install("ending_chip", ENDING.format(what=what), "coterie.providers", chip="ending_chip:PROVIDER")
    (provider,) = load_providers()
    report = tried(provider)
    assert not report.passed and {case.outcome for case in report.cases[:-1]} == {"agrees"}
    assert "conv" in report.cases[-1].name and report.cases[-1].outcome == "failed"
    assert said in (report.cases[-1].error or "") and said in report.reason


def test_a_provider_that_holds_its_process_has_failed(install: Callable[..., None]) -> None:
    install("ending_chip", ENDING.format(what="time.sleep(600)"), "coterie.providers", chip="ending_chip:PROVIDER")
    (provider,) = load_providers()
    report = tried(provider, limit_s=3.0)
    assert not report.passed and "the process that tried it did not end within 3 s" in report.reason
    assert [case.outcome for case in report.cases][-1] == "failed"


def test_a_trial_in_a_process_of_its_own_is_the_same_trial(install: Callable[..., None]) -> None:
    install("fake_chip", FAKE, "coterie.providers", a="fake_chip:HONEST", b="fake_chip:LIAR")
    for provider in load_providers():
        assert tried(provider) == conformance(provider)
    gone = Provider("GoneExecutionProvider", "1", open=lambda data: lambda feeds: {})
    assert "it does not find GoneExecutionProvider" in tried(gone).reason
