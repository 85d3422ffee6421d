"""What a device must not load: many of them may start at once on a small machine."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.patience import patience

HEAVY = (
    "fastapi",
    "sqlalchemy",
    "typer",
    "rich",
    "click",
    "pygments",
    "pandas",
    "sklearn",
    "scipy",
    "torch",
    "matplotlib",
)


@pytest.mark.parametrize(
    "module", ["coterie.client_sdk.device.agent", "coterie.client_sdk.device.trainers.plan", "coterie.client_sdk"]
)
def test_a_device_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience(60))
    assert not set(loaded.stdout.split()) & set(HEAVY)


def test_httpx_keeps_its_own_command_for_those_who_want_it() -> None:
    pytest.importorskip("click", reason="httpx's own command needs click, which a plain install may lack")
    code = "import coterie.client_sdk.lean_httpx, sys; assert 'httpx._main' not in sys.modules; import httpx._main"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(60))


IMPORTS_SNIFFIO = """
import importlib.util, sys
if {installed}:
    sys.path.insert(0, {path!r})
import coterie.client_sdk.lean_httpx
try:
    import sniffio
except ModuleNotFoundError as error:
    print(error.name, importlib.util.find_spec("sniffio"))
else:
    print(sniffio.__file__)
"""


@pytest.mark.skipif(find_spec("sniffio") is not None, reason="it is installed here, and nothing is done")
@pytest.mark.parametrize("installed", [False, True])
def test_others_find_sniffio_or_miss_it_as_without_coterie(installed: bool, tmp_path: Path) -> None:
    path = tmp_path / "sniffio.py"
    path.write_text("def current_async_library(): return 'asyncio'\n")
    code = IMPORTS_SNIFFIO.format(installed=installed, path=str(tmp_path))
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=patience(60)
    )
    assert found.stdout.strip() == (str(path) if installed else "sniffio None")


def test_the_public_names_are_these() -> None:
    import coterie.client_sdk
    import coterie.simulation

    assert coterie.client_sdk.__all__ == ["Control", "Device", "DevicePolicy", "submit"]
    assert coterie.simulation.__all__ == [
        "Simulation",
        "VerticalRun",
        "VirtualClients",
        "dirichlet",
        "iid",
        "prepare",
        "simulate",
        "simulate_full",
        "simulate_vertical",
        "split",
    ]
    for package in (coterie.client_sdk, coterie.simulation):
        for name in package.__all__:
            assert getattr(package, name).__name__ == name
        with pytest.raises(AttributeError):
            getattr(package, "nothing_of_that_name")  # noqa: B009
