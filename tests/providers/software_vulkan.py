"""Mesa's software Vulkan driver, unpacked from Debian's packages into a folder; nothing is installed.

WebGPU's plug-in wants a Mesa of 2023 or later, which Debian 12 has in its backports.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("mesa-vulkan-drivers", "libvulkan1", "libdrm2", "libdrm-amdgpu1")


def software_vulkan(folder: Path) -> Mapping[str, str] | None:
    """The variables by which programs find the driver, unpacked into ``folder`` where it is not yet; None where this
    machine cannot have it: it is no Debian, or the archive is out of reach, or a library is missing.
    """
    if not (found := _driver(folder)) and not _unpacked(folder):
        return None
    found = found or _driver(folder)
    if found is None:
        return None
    libraries = found.parent
    missing = subprocess.run(["ldd", str(found)], capture_output=True, text=True, env=_with(libraries)).stdout
    if "not found" in missing:
        return None
    icd = folder / "software.json"
    described = {"file_format_version": "1.0.0", "ICD": {"library_path": str(found), "api_version": "1.3.0"}}
    icd.write_text(json.dumps(described), encoding="utf-8")
    paths = _with(libraries)["LD_LIBRARY_PATH"]
    # Compiled shaders would be kept in the user's home.
    kept = {"MESA_SHADER_CACHE_DIR": str(folder / "shaders")}
    return {"VK_DRIVER_FILES": str(icd), "VK_ICD_FILENAMES": str(icd), "LD_LIBRARY_PATH": paths, **kept}


def _with(libraries: Path) -> dict[str, str]:
    before = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": f"{libraries}{os.pathsep}{before}" if before else str(libraries)}


def _driver(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("root/usr/lib/*/libvulkan_lvp.so"))), None)


def _unpacked(folder: Path) -> bool:
    """Fetch the packages with apt, its own state untouched, and unpack them."""
    codename = _codename()
    if not codename or not all(map(shutil.which, ("apt-get", "dpkg", "ldd"))):
        return False
    archive = _archive(codename)
    if archive is None:
        return False
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "packages"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    backports = f"{codename}-backports"
    sources = "".join(f"deb {archive} {suite} main\n" for suite in (codename, backports))
    (apt / "sources.list").write_text(sources, encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt / "cache",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    for command in (["update"], ["-t", backports, "download", *PACKAGES]):
        done = subprocess.run(["apt-get", "-qq", *options, *command], cwd=apt / "packages", capture_output=True)
        if done.returncode:
            return False
    for package in sorted((apt / "packages").glob("*.deb")):
        if subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], capture_output=True).returncode:
            return False
    return True


def _archive(codename: str) -> str | None:
    """Where this machine's apt has the release from; the backports lie beside it."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return next((line.split(" ", 1)[1] for line in lines if line.startswith(f"{codename} ")), None)


def _codename() -> str:
    """Debian's name for this release; "" on another system."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    return facts.get("VERSION_CODENAME", "").strip('"') if facts.get("ID") == "debian" else ""
