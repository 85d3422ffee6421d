"""Running the coordinator: one process, uvicorn, an address that is bound before anything else happens."""

import asyncio
import errno
import gc
import ipaddress
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog
import uvicorn

from coterie.errors import ConfigurationError
from coterie.server import logs
from coterie.server.app import create_app
from coterie.server.connections import Connections, guarded, room_for, tell_briefly
from coterie.server.coordinator import Coordinator
from coterie.server.settings import Settings
from coterie.server.store.housekeeping import ADMIN_TOKEN_FILE

log = structlog.get_logger("coterie.server")
ACCEPTED_AT_ONCE = 128
"""asyncio tries so often in a row, and logs each failure, where the system has no descriptor left."""


@dataclass(frozen=True)
class Started:
    """A coordinator that answers.

    admin_token: only when this start made it; it is in the file from then on.
    """

    url: str
    docs: str
    folder: Path
    admin_token: str | None = field(repr=False)
    admin_token_file: Path


def serve(settings: Settings, on_ready: Callable[[Started], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish open requests, close and return.

    on_ready is called once, when the coordinator answers. Raises ConfigurationError: the port is in use, the address
    cannot be bound, the TLS files cannot be read, a public address without TLS, or what opening the folder refuses.
    """
    logs.configure(settings.log_level)
    check_exposure(settings)
    bound = bind(settings)
    try:
        asyncio.run(_run(settings, bound, on_ready))
    finally:
        bound.close()


def check_exposure(settings: Settings) -> None:
    """Refuse to talk in clear to a network. Raises ConfigurationError."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigurationError(
            "TLS needs both a certificate and its key.", hint="Give --tls-cert and --tls-key, or neither."
        )
    for path in (settings.tls_cert, settings.tls_key):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigurationError(f"The TLS file {path} cannot be read.", hint="Check the path and its permissions.")
    if settings.tls_cert is not None and settings.tls_key is not None:
        _check_identity(settings.tls_cert, settings.tls_key)
    if not (_is_loopback(settings.host) or settings.tls or settings.insecure):
        raise ConfigurationError(
            f"Binding {settings.host} without TLS would send tokens and models in clear.",
            hint="Give --tls-cert and --tls-key; or, behind a proxy that ends TLS, set COTERIE_INSECURE=1.",
            code="tls_required",
        )


def _check_identity(certificate: Path, key: Path) -> None:
    try:
        # The empty password keeps OpenSSL from asking for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ConfigurationError(
            f"The TLS files {certificate} and {key} cannot be used: {error.args[-1]}.",
            hint="Give a certificate chain and its own unencrypted key, both as PEM.",
        ) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises ConfigurationError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigurationError(
            f"Cannot bind to {settings.host}: {error.strerror}.", hint="Use an IP address."
        ) from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"Port {settings.port} of {settings.host} is in use.",
                hint="Stop the program that uses it, or choose another port (--port, COTERIE_PORT; 0 lets the "
                "system choose).",
                code="port_in_use",
            ) from None
        raise ConfigurationError(
            f"Cannot bind to {settings.host}:{settings.port}: {error.strerror}.",
            hint="Use 127.0.0.1, or a port above 1023.",
        ) from None
    return bound


class _Server(uvicorn.Server):
    """uvicorn, which says when it answers, and on a signal tells the coordinator first, so that event streams end
    instead of holding the process.
    """

    def __init__(self, config: uvicorn.Config, closing: Callable[[], None], ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._closing = closing
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._closing()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle SIGINT and SIGTERM while serving. Unlike uvicorn's own, this does not raise them again: `serve`
        returns.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _run(settings: Settings, bound: socket.socket, on_ready: Callable[[Started], None] | None) -> None:
    app = create_app(settings)
    host, port = bound.getsockname()[:2]
    url = f"{'https' if settings.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=round(settings.shutdown_s),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=30,
        http=guarded(
            Connections(
                room_for(settings.max_connections), settings.max_connections_per_address, settings.header_timeout_s
            )
        ),
        backlog=ACCEPTED_AT_ONCE,
    )
    asyncio.get_running_loop().set_exception_handler(tell_briefly)
    # The lifespan runs here and not inside uvicorn, which would turn a refusal to start into a line of its log.
    async with app.router.lifespan_context(app):
        coordinator: Coordinator = app.state.coordinator
        # What is there now stays. Left out of collections, it does not hold up every request for 0.1 s now and then.
        gc.collect()
        gc.freeze()

        def ready() -> None:
            token, folder = coordinator.identity.first_token, settings.folder.resolve()
            log.info("listening", url=url, docs=f"{url}/docs", folder=str(folder))
            if on_ready is not None:
                on_ready(Started(url, f"{url}/docs", folder, token.text if token else None, folder / ADMIN_TOKEN_FILE))

        await _Server(config, coordinator.signals.hang_up, ready).serve([bound])
