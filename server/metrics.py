"""Counters for Prometheus. Labels are routes and outcomes, never devices or secrets."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WAITS = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """The metrics of one coordinator, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "coterie_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "coterie_request_seconds",
            "Time to answer, without waits for news.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._waits = Histogram(
            "coterie_wait_seconds",
            "Time that requests waited for news: long polls and streams of events.",
            ("route",),
            buckets=WAITS,
            registry=self.registry,
        )
        self.updates = Counter("coterie_updates", "Uploads by outcome.", ("outcome",), registry=self.registry)
        self.messages = Counter(
            "coterie_secure_messages", "Messages of secure aggregation.", ("phase",), registry=self.registry
        )
        self.attempts = Counter(
            "coterie_attempts", "Secure aggregations by how they ended.", ("outcome",), registry=self.registry
        )
        self.rounds = Counter("coterie_rounds", "Rounds by how they ended.", ("outcome",), registry=self.registry)
        self.damaged = Counter(
            "coterie_damaged_blobs", "Stored files found to be missing or changed.", registry=self.registry
        )
        self.received = Counter("coterie_received_bytes", "Bytes of updates received.", registry=self.registry)
        self.sent = Counter("coterie_sent_bytes", "Bytes of blobs sent.", registry=self.registry)
        self.running = Gauge("coterie_experiments_running", "Experiments that are running.", registry=self.registry)

    def observe(self, method: str, route: str, status: int, seconds: float, waited: float) -> None:
        """Count one answered request. Methods that no route has count as one: a label for each would let a stranger
        fill the memory.

        seconds: from its first byte to the last of its answer.
        waited: how much of that it waited for news; 0 for a request that did not.
        """
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(max(seconds - waited, 0.0))
        if waited:
            self._waits.labels(route).observe(waited)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
