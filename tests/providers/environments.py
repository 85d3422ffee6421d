"""The environments in which providers are proved: each an interpreter of its own with one ONNX Runtime."""

import hashlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.providers.software_vulkan import software_vulkan

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".coterie" / "providers"
EVERY_GRAPH = ("probe", "begin", "train", "finish", "eval", "infer")
# What a device runs on another provider than the CPU: graphs that are stepped over rows.
STEPPED = ("probe", "train", "eval")
# What is written beside plans: a CPU runs it in every version.
EVERY_FILE = ("exports", "control flow", "float64")


class NotHere(Exception):
    """Why an environment cannot be made on this machine."""


@dataclass(frozen=True)
class Environment:
    """packages: what brings the provider, ONNX Runtime among it. graphs: of plans, that the provider has to run.
    files: the kinds of files beside plans that it has to run. vulkan: whether it needs a Vulkan driver, which may be a
    software one. device: the file by which the system shows a device that it needs; "" for none. timed: whether steps
    are timed on it and on the CPU.
    """

    name: str
    packages: tuple[str, ...]
    provider: str
    graphs: tuple[str, ...] = EVERY_GRAPH
    files: tuple[str, ...] = ()
    vulkan: bool = False
    device: str = ""
    timed: bool = False

    @property
    def python(self) -> Path:
        """The interpreter; there once the environment is made."""
        return FOLDER / self.name / "bin" / "python"

    def made(self) -> Mapping[str, str]:
        """Make it where it is not made yet; gives the variables to run it with. Raises NotHere."""
        if self.device and not Path(self.device).exists():
            raise NotHere(f"there is no {self.device} on this machine")
        wanted = [*_needs(), *self.packages]
        stamp = FOLDER / self.name / "installed"
        digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
            _call([sys.executable, "-m", "venv", "--clear", str(FOLDER / self.name)], "no environment can be made")
            install = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
            _call(install, f"{', '.join(self.packages)} cannot be installed")
            stamp.write_text(digest, encoding="utf-8")
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        return {**variables, **self._driver(variables)} if self.vulkan else variables

    def _driver(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        """The machine's own Vulkan driver, else a software one that is unpacked beside the environment."""
        asks = "from coterie.compute.runtime.vulkan import vulkan_devices; print(*vulkan_devices(), sep='; ')"
        found = subprocess.run([self.python, "-c", asks], env=variables, capture_output=True, text=True)
        own = dict[str, str]() if found.stdout.strip() else software_vulkan(FOLDER / "vulkan")
        if own is None:
            raise NotHere("there is no Vulkan driver, and none can be unpacked here")
        # Without a graphics card ONNX Runtime shows no device that WebGPU could take; this lets it take the processor.
        return {**own, "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1"}


ENVIRONMENTS: tuple[Environment, ...] = (
    Environment("cpu", ("onnxruntime",), "CPUExecutionProvider", files=EVERY_FILE),
    Environment("onnxruntime-1.24", ("onnxruntime==1.24.4",), "CPUExecutionProvider", files=EVERY_FILE),
    Environment("openvino", ("onnxruntime-openvino==1.24.1",), "OpenVINOExecutionProvider", files=("exports",)),
    Environment("webgpu", ("onnxruntime", "onnxruntime-ep-webgpu"), "WebGpuExecutionProvider", STEPPED, vulkan=True),
    Environment(
        "cuda",
        ("onnxruntime-gpu[cuda,cudnn]==1.31.1",),
        "CUDAExecutionProvider",
        STEPPED,
        files=EVERY_FILE,
        device="/dev/nvidiactl",
        timed=True,
    ),
)


def _needs() -> list[str]:
    """What coterie installs, but for ONNX Runtime."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed: list[str] = tomllib.load(file)["project"]["dependencies"]
    return [need for need in listed if not need.startswith("onnxruntime")]


def _call(command: list[str], otherwise: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise NotHere(f"{otherwise}: {last}")
