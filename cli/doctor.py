"""`coterie doctor`: whether this machine can do what coterie asks of it."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.extras import EXTRAS, missing
from coterie.cli.failures import FAILED
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import HOME, PORT
from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.cli.doctor_providers import ProviderRow

PACKAGES = ("numpy", "onnx", "onnxruntime", "pydantic", "httpx", "cryptography", "zstandard")
# A clock before this is not set; certificates would seem to lie in the future.
RELEASED = 1_760_000_000
# Builds of ONNX Runtime with other providers are packages of other names that bring the same module.
_RUNTIME = "onnxruntime"
_CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what, whether it is as needed (None where it only limits), and a sentence."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None


def doctor(
    port: Annotated[
        int, typer.Option(min=0, max=65535, envvar="COTERIE_PORT", help="The port that a coordinator would bind.")
    ] = PORT,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="FILE[:NAME]", help="Check and time this experiment's plan on every provider."),
    ] = None,
    store: Annotated[Path | None, typer.Option(help="A client's folder; its record of providers is updated.")] = None,
    json: JsonOption = False,
) -> None:
    """Check versions, execution providers, write access, port, clock and extras.

    Every provider is tried by running all recipes against NumPy, those beside the CPU in a process of their own: some
    seconds each, a minute on a software GPU. Ends with 0 when the machine is ready, with 1 when something is FAILED.
    """
    output = Output(json)
    versions = list(_versions())
    usable = all(finding.ok is not False for finding in versions if finding.name == _RUNTIME)
    providers = _providers(output, experiment, store) if usable else []
    findings = [*versions, *providers, _write_access(), _free_port(port), _clock(), *_extras()]
    for finding in findings:
        output.event("check", name=finding.name, ok=finding.ok, detail=finding.detail, fix=finding.fix)
    marks = {True: "ok", False: "FAILED", None: "limits"}
    output.table(
        ("check", "", "what was found"),
        [
            (finding.name, marks[finding.ok], finding.detail + (f"\nfix: {finding.fix}" if finding.fix else ""))
            for finding in findings
        ],
        empty="",
    )
    failed = [finding.name for finding in findings if finding.ok is False]
    output.event("summary", ok=not failed, failed=failed)
    if failed:
        output.say(f"Not ready: {', '.join(failed)}.")
        raise typer.Exit(FAILED)
    output.say("Ready.")


def _versions() -> Iterator[Finding]:
    yield Finding("coterie", True, __version__)
    python = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding(
        "python", sys.version_info >= (3, 11), python, None if sys.version_info >= (3, 11) else "Use 3.11 or later."
    )
    for package in PACKAGES:
        if package == _RUNTIME:
            yield _runtime()
            continue
        try:
            yield Finding(package, True, version(package))
        except PackageNotFoundError:
            yield Finding(package, False, "not installed", "Run: pip install --upgrade coterie")


def _runtime() -> Finding:
    """ONNX Runtime, by whichever of its packages; two of them have overwritten each other's files."""
    packages = sorted(set(packages_distributions().get(_RUNTIME, ())))
    told = ", ".join(version(each) + ("" if each == _RUNTIME else f" ({each})") for each in packages)
    if not packages:
        return Finding(_RUNTIME, False, "not installed", "Run: pip install --upgrade coterie")
    try:
        whole = hasattr(import_module(_RUNTIME), "InferenceSession")
    except Exception:  # a damaged package may raise anything
        whole = False
    if not whole:
        # As after the removal of one of two packages that had the same files.
        return Finding(_RUNTIME, False, f"{told}: damaged", f"Run: pip install --force-reinstall {packages[0]}")
    if len(packages) > 1:
        fix = f"Run: pip uninstall {' '.join(packages)}; then install the one that you want."
        return Finding(_RUNTIME, None, f"{told}: they have the same files, and one hides the other", fix)
    return Finding(_RUNTIME, True, told)


def _providers(output: Output, experiment: str | None, store: Path | None) -> list[Finding]:
    """Every execution provider found here, judged by running each recipe against NumPy, as a table of its own."""
    from coterie.cli.doctor_providers import broken_packages, provider_rows

    compiled = None
    if experiment is not None:
        from coterie.aggregation.compiling.compile import compile_plan
        from coterie.cli.loading import load_experiment

        compiled = compile_plan(load_experiment(experiment)[0])
    rows: list[ProviderRow] = []
    for row in provider_rows(compiled, store):
        output.event("provider", **row.to_json())
        rows.append(row)
    _show(output, rows)
    fix = "Install what it needs, or uninstall it."
    return [*map(_of_provider, rows), *(Finding(package, None, fault, fix) for package, fault in broken_packages())]


def _show(output: Output, rows: "list[ProviderRow]") -> None:
    """Two tables, each narrow enough for a terminal of 80 columns: of providers, and of what they make of graphs."""
    names = [row.provider.name.removesuffix("ExecutionProvider") for row in rows]
    output.table(
        ("provider", "version, on", "verdict", "step, ms"),
        [
            (
                name,
                f"{row.provider.runtime}, {row.provider.driver}",
                row.verdict + (f" (it was {row.before})" if row.before and row.before != row.verdict else ""),
                (row.fault if row.step_ms is None else f"{row.step_ms:.3f}")
                + (f"; frozen front there: {row.front_ms:.3f}" if row.front_ms is not None else ""),
            )
            for name, row in zip(names, rows, strict=True)
        ],
        empty="",
    )
    graphs = list(dict.fromkeys(graph for row in rows for graph in row.coverage))
    output.table(
        ("runs there, of the graph", *names),
        [(graph, *(row.coverage.get(graph, "not asked") for row in rows)) for graph in graphs],
        empty="",
    )
    if len(rows) == 1:
        output.say("Only the CPU computes here; every plan runs on it. Others: docs/providers.md.\n")


def _of_provider(row: "ProviderRow") -> Finding:
    """A machine without its CPU provider is not ready; any other one is left unused where it is wrong."""
    name, needed = f"provider {row.provider.name}", row.provider.name == _CPU
    if row.report.passed:
        return Finding(name, True, row.recipes)
    return Finding(name, False if needed else None, row.verdict, "Update its driver or leave it unused.")


def _write_access() -> Finding:
    folder = HOME if HOME.exists() else Path()
    try:
        with NamedTemporaryFile(dir=folder):
            return Finding("write access", True, str(HOME.resolve()))
    except OSError as error:
        return Finding(
            "write access", False, f"{HOME.resolve()}: {error.strerror}", "Run in a folder you may write to."
        )


def _free_port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            fix = f"A coordinator may be running; for another one: coterie server --port {port + 1}"
            return Finding(f"port {port}", None, os.strerror(error.errno or 0), fix)
    return Finding(f"port {port}", True, "free")


def _clock() -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < RELEASED:
        return Finding("clock", False, shown, "Set the clock: TLS certificates depend on it.")
    return Finding("clock", True, f"{shown} (no protocol message carries an absolute time)")


def _extras() -> Iterator[Finding]:
    for extra in EXTRAS:
        absent = missing(extra)
        if absent:
            yield Finding(
                f"extra {extra}", None, f"without {', '.join(absent)}", f'To have it: pip install "coterie[{extra}]"'
            )
        else:
            yield Finding(f"extra {extra}", True, "installed")
