"""Nonces for signed requests: issued by the coordinator, good for one device, one request and a short time.

A nonce is sealed with HMAC-SHA256 under a key that the coordinator keeps, so nothing is stored when one is issued, and
any process of the coordinator knows it. A process takes none that is older than itself: it does not know which of those
were used by requests that changed nothing, and so left no row. A used nonce is refused for as long as its seal would
hold: this process remembers it, and a request that changes something records it in its own transaction as well, so that
a copy handled elsewhere cannot commit. What is older is stale anyway, so a replay is refused for ever.
"""

import base64
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable

from coterie.errors import Unauthenticated
from coterie.server.clock import now_ms

_SEAL = 16
_RANDOM = 12
_TIME = 8


class Nonces:
    """Issues and checks nonces."""

    def __init__(self, key: bytes, window_s: float, clock: Callable[[], int] = now_ms) -> None:
        self._key = key
        self._window_ms = int(window_s * 1000)
        self._clock = clock
        self._since = clock()
        self._used: set[str] = set()
        self._order: deque[tuple[int, str]] = deque()

    def issue(self, device: str) -> str:
        """A fresh nonce for a device."""
        head = self._clock().to_bytes(_TIME) + secrets.token_bytes(_RANDOM)
        return base64.urlsafe_b64encode(head + self._seal(device, head)).decode()

    def check(self, device: str, nonce: str) -> int:
        """When this nonce expires, in milliseconds. Raises Unauthenticated ``nonce_stale`` unless it was issued to this
        device, lately, by this coordinator.
        """
        stale = Unauthenticated(
            "The nonce is not one that this coordinator lately gave to this device.",
            hint="Sign again with the nonce of this answer.",
            code="nonce_stale",
        )
        try:
            raw = base64.b64decode(nonce, altchars=b"-_", validate=True)
        except ValueError:
            raise stale from None
        head, seal = raw[: _TIME + _RANDOM], raw[_TIME + _RANDOM :]
        if (
            len(seal) != _SEAL
            or base64.urlsafe_b64encode(raw).decode() != nonce
            or not hmac.compare_digest(seal, self._seal(device, head))
        ):
            raise stale
        issued, now = int.from_bytes(head[:_TIME]), self._clock()
        expires = issued + self._window_ms
        # A clock that was set back must not shut out every device until it is where it was.
        self._since = min(self._since, now)
        if issued < self._since or expires <= now or issued > now + self._window_ms:
            raise stale
        if nonce in self._used:
            raise used()
        return expires

    def spend(self, nonce: str, expires: int) -> None:
        """Remember that a verified request used this nonce. Raises Unauthenticated ``nonce_used`` when another was
        faster.
        """
        now = self._clock()
        while self._order and self._order[0][0] <= now:
            self._used.discard(self._order.popleft()[1])
        if nonce in self._used:
            raise used()
        self._used.add(nonce)
        # Nonces expire in the order they were issued, not used; keeping each for a whole window from now is the simple
        # safe bound.
        self._order.append((now + self._window_ms, nonce))

    def _seal(self, device: str, head: bytes) -> bytes:
        return hmac.digest(self._key, device.encode() + b"\0" + head, hashlib.sha256)[:_SEAL]


def used() -> Unauthenticated:
    """The refusal of a replayed request."""
    return Unauthenticated(
        "This signed request was received before.", hint="Sign again with the nonce of this answer.", code="nonce_used"
    )
