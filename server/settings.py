"""What an operator may set: arguments first, then the environment (``COTERIE_*``), then these defaults."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from coterie.protocol.wire import DISPLAYABLE

MEBIBYTE = 1024 * 1024


class Settings(BaseSettings):
    """The settings of one coordinator process. Durations are seconds, sizes are bytes."""

    model_config = SettingsConfigDict(env_prefix="COTERIE_", frozen=True, extra="ignore")

    folder: Path = Field(
        default=Path(".coterie/server"), description="Where the coordinator keeps its database, blobs, lock and keys."
    )
    database_url: str | None = Field(
        default=None,
        repr=False,
        description="The database: sqlite:////absolute/path.db, the only kind supported now. A file in `folder` when "
        "not given.",
    )
    host: str = Field(
        default="127.0.0.1", description="The address to bind. Anything but loopback needs TLS, or insecure=True."
    )
    port: int = Field(default=8765, ge=0, le=65535, description="The port to bind; 0 lets the system choose.")
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain.")
    tls_key: Path | None = Field(default=None, description="PEM private key of the certificate.")
    insecure: bool = Field(
        default=False, description="Allow a non-loopback bind without TLS (behind a proxy that ends TLS)."
    )
    public_url: str | None = Field(
        default=None,
        description="Where devices reach this coordinator, if a proxy changes the Host header or the path: signatures "
        "cover both. Both as they come when not given.",
    )
    cors_origins: str = Field(
        default="",
        description="Origins of web pages that may use the API, with commas between (https://app.example.org). None "
        "when empty.",
    )
    ledger_checkpoints: Path | None = Field(
        default=None,
        description="A folder outside of `folder` for the newest entry of each privacy ledger, to which they are held.",
    )
    log_level: str = Field(default="info", description="debug, info, warning or error.")

    blob_limit: int = Field(
        default=2048 * MEBIBYTE, gt=0, description="The largest blob that an administrator may upload."
    )
    update_limit: int = Field(
        default=1024 * MEBIBYTE, gt=0, description="The largest update file, whatever a plan would allow."
    )
    body_stall_s: float = Field(
        default=60.0, gt=0, description="How long a request may pause inside its body before it is given up."
    )
    body_rate: float = Field(default=1024.0, gt=0, description="Minimum upload rate, in bytes/s, after `body_stall_s`.")
    header_timeout_s: float = Field(
        default=10.0, gt=0, description="How long a connection may take until all headers of a request are there."
    )
    max_connections: int = Field(
        default=8192, ge=1, description="Connections at most; fewer where the system gives fewer descriptors."
    )
    max_connections_per_address: int = Field(
        default=2048, ge=1, description="Connections of one address at most. Behind a proxy all have its address."
    )
    nonce_window_s: float = Field(default=300.0, gt=0, description="How long a nonce stays valid after it was issued.")
    check_in_rate: float = Field(default=200.0, gt=0, description="Check-ins per second to steer the fleet towards.")
    retry_floor_s: float = Field(
        default=0.2, gt=0, description="The shortest mean wait between two check-ins while an experiment runs."
    )
    retry_idle_s: float = Field(
        default=1.0, gt=0, description="The shortest mean wait between two check-ins while none runs."
    )
    retry_ceiling_s: float = Field(
        default=900.0,
        gt=0,
        description="The longest mean wait between two check-ins of a large fleet with nothing to do.",
    )
    heartbeat_s: float = Field(default=15.0, gt=0, description="How often an idle event stream says that it is alive.")
    aggregate_attempts: int = Field(
        default=3, ge=1, description="How often a numeric job is tried in a row before it counts as failed."
    )
    aggregate_timeout_s: float = Field(default=3600.0, gt=0, description="How long one numeric job may take.")
    worker_silence_s: float = Field(
        default=60.0, gt=1, description="After how much silence a worker process is taken for stopped, and replaced."
    )
    job_lease_s: float = Field(
        default=30.0,
        gt=0,
        description="How long a numeric job waits for a process that says no more, before another takes it.",
    )
    retention_days: float | None = Field(
        default=None,
        gt=0,
        description="Days after which an ended experiment keeps only its record and its first, best and last versions.",
    )
    upstream: str | None = Field(
        default=None, description="The coordinator above: this one is an edge aggregator of it, and has one population."
    )
    upstream_token: str | None = Field(
        default=None, repr=False, description="A token of the kind edge; needed to join, not any more afterwards."
    )
    upstream_ca: Path | None = Field(default=None, description="PEM of the authority of the coordinator above.")
    edge_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=DISPLAYABLE,
        description="What the coordinator above calls it; `edge aggregator on` and the host's name when not given.",
    )
    edge_cohort: int = Field(default=10, ge=1, description="How many updates an edge aggregator's round wants.")
    edge_over_selection: float = Field(
        default=1.0, ge=1, le=10, description="How many tasks it hands out for each update that it wants."
    )
    edge_min_clients: int = Field(
        default=2, ge=1, description="Of how many clients its answers are at least, whatever is asked above."
    )
    edge_deadline_s: float | None = Field(
        default=None, gt=0, description="How long its rounds may take; four fifths of the round above when not given."
    )
    prestart: bool = Field(default=True, description="Start the worker process before the first numeric job needs it.")
    shutdown_s: float = Field(default=5.0, gt=0, description="How long open requests may take to end on shutdown.")

    @property
    def tls(self) -> bool:
        """Whether both halves of a TLS identity are set."""
        return self.tls_cert is not None and self.tls_key is not None
