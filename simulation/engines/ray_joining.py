"""A process's connection to a Ray cluster: one that it starts on this machine and ends, or one that is there already.

A cluster of this machine listens on the loopback interface alone, since whoever reaches a cluster may run code in it
(unless the script imported Ray before coterie did); what it writes goes with it. One that is there is joined through
Ray Client (``ray://host:10001``), which speaks gRPC.
"""

import os
import shutil
import socket
import sys
import tempfile
import warnings
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coterie.errors import ConfigurationError, RemoteError

LOCAL = "ray:local"
CLIENT_PORT = 10001
# Sockets lie in a folder of Ray's, and a socket's path may have 107 bytes, of which Ray's own names take about 65.
_LONGEST_PARENT = 20
_KNOCK_S = 5.0


@dataclass
class Joined:
    """A connection to a Ray cluster.

    ray: the module.
    address: as the user wrote it.
    here: whether this process started the cluster, whose workers see the same files.
    begun: whether it made the connection, and ends it.
    client: whether through Ray Client.
    folder: what a cluster of ours writes into.
    """

    ray: Any
    address: str
    here: bool
    begun: bool
    client: bool
    folder: Path | None = None

    def require(self) -> None:
        """Raise ConnectionError where the connection broke. Otherwise Ray would start a cluster at the next call."""
        if not (_is_client(self.ray) if self.client else self.ray.is_initialized()):
            raise ConnectionError("the connection is closed")

    def close(self) -> None:
        """End the connection, and the cluster if it was started here. Safe to call twice, and after it broke."""
        if self.begun:
            self.begun = False
            with suppress(ConnectionError, RuntimeError, self.ray.exceptions.RayError):
                self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def join(address: str, workers: int) -> Joined:
    """Start or join a cluster.

    address: ``ray:local`` or ``ray://host:port``.
    workers: the CPUs of a cluster that is started. A process that has joined one already, by Ray's own means, works
        there.

    Raises ConfigurationError: ``extra_missing``, ``unknown_engine`` for an address that is none; RemoteError
    (``ray_unreachable``), within seconds where nobody listens.
    """
    place = None if address == LOCAL else _host_and_port(address)
    ray = _ray()
    if ray.is_initialized():
        return Joined(ray, address, here=False, begun=False, client=_is_client(ray))
    return _start(ray, workers) if place is None else _join(ray, address, place)


def _start(ray: Any, workers: int) -> Joined:
    # Workers find the modules which this process finds; nothing is reported to anybody.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    joined = Joined(ray, LOCAL, here=True, begun=True, client=False, folder=_folder())
    try:
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
            _temp_dir=str(joined.folder),
            logging_level="error",
            log_to_driver=False,
        )
    except BaseException as error:
        joined.close()
        if not isinstance(error, ConnectionError | OSError | RuntimeError | ValueError):
            raise
        raise RemoteError(
            f"A Ray cluster cannot be started on this machine: {error}",
            hint="engine='processes' needs no cluster.",
            code="ray_unreachable",
        ) from error
    return joined


def _join(ray: Any, address: str, place: tuple[str, int]) -> Joined:
    if find_spec("grpc") is None:
        raise ConfigurationError(
            "Joining a Ray cluster needs gRPC, which is not installed.",
            hint="pip install 'coterie[ray]'",
            code="extra_missing",
        )
    _check_reachable(address, place)
    try:
        with warnings.catch_warnings():
            # Ray warns of what it then raises.
            warnings.simplefilter("ignore", UserWarning)
            ray.init(address=address, logging_level="error", log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise RemoteError(
            f"The Ray cluster at {address!r} cannot be joined: {error}",
            hint="The port must be that of its Ray Client server (10001 as a rule), Ray and Python there of the same "
            "versions as here, and RAY_AUTH_MODE=token set where it asks for a token.",
            code="ray_unreachable",
        ) from error
    return Joined(ray, address, here=False, begun=True, client=True)


def _check_reachable(address: str, place: tuple[str, int]) -> None:
    """Find out in a moment whether anybody is there: Ray itself asks for half a minute."""
    try:
        with closing(socket.create_connection(place, _KNOCK_S)):
            return
    except OSError as error:
        raise RemoteError(
            f"There is no Ray cluster at {address!r}: {error}",
            hint="Start one with `ray start --head --ray-client-server-port 10001`, or use engine='ray:local'.",
            code="ray_unreachable",
        ) from error


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ConfigurationError(
            f"The engine {address[:64]!r} names no cluster.",
            hint="Write ray://host:10001 with the cluster's head and the port of its Ray Client server, or ray:local.",
            code="unknown_engine",
        )
    return host, CLIENT_PORT if port is None else port


def _folder() -> Path:
    where = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="coterie-ray-", dir=where if len(where) <= _LONGEST_PARENT else "/tmp"))


def _is_client(ray: Any) -> bool:
    return bool(ray.util.client.ray.is_connected())


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "ray" not in sys.modules:
        # As Ray decides by itself on a desktop, and once for all when it is imported: clusters of this process are
        # bound to the loopback interface. Clusters that it joins through Ray Client are where they are.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The engine 'ray' needs Ray, which is not installed.",
            hint="pip install 'coterie[ray]'",
            code="extra_missing",
        ) from error
