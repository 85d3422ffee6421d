"""Fixtures of tests over all parts at once."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "client_sdk"))

from sdk_kit import Coordinator, coordinator_process


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Generator[Coordinator, None, None]:
    """A real coordinator on a loopback port, ended by its own process id."""
    with coordinator_process(tmp_path_factory.mktemp("coordinator")) as started:
        yield started
