"""What every test may use, and the rule that a missing data set cannot hide a test on the project's own machines."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.patience import patience

# On a busy machine a slow example is no failure.
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")

_REASON = "COTERIE_DATA is not set"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give every test its time on this machine; worker processes take over what the first process measured."""
    if config.getoption("timeout", None) is None and config.pluginmanager.hasplugin("timeout"):
        config.option.timeout = patience(float(config.getini("timeout")))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of test data named by COTERIE_DATA; the test is skipped without it."""
    folder = os.environ.get("COTERIE_DATA")
    if not folder:
        pytest.skip(_REASON)
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"COTERIE_DATA names no folder: {path}")
    return path


@pytest.fixture
def by_renyi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Privacy is counted by Rényi divergences, as without dp-accounting, in milliseconds instead of seconds: for tests
    of something else than how near a cost is to the least.
    """
    monkeypatch.setattr("coterie.privacy.dp.loss_distribution.available", lambda: False)


def _data_is_required() -> bool:
    return os.environ.get("COTERIE_REQUIRE_DATA") == "1"


def _fail_if_skipped_for_data(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Under COTERIE_REQUIRE_DATA=1 a skip whose reason names COTERIE_DATA is a failure."""
    if _data_is_required() and report.skipped and "COTERIE_DATA" in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped for missing data, and COTERIE_REQUIRE_DATA=1 forbids that: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped_for_data(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped_for_data(report)
    return report
