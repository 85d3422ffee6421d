"""Who is enrolled and who is around, as this process knows it: caches of rows, and what is written down only later."""

from dataclasses import dataclass

from coterie.server.fleet import Fleet
from coterie.server.pace import Pacer
from coterie.server.store.devices import DeviceCache
from coterie.server.store.sessions import PartyCache


@dataclass(frozen=True, kw_only=True)
class Presence:
    """Which devices and parties are here, and when they come back.

    devices, parties: those that signed a request lately.
    fleet: when devices were last seen.
    guests: when parties were.
    pacer: says when devices should come back.
    """

    devices: DeviceCache
    parties: PartyCache
    fleet: Fleet
    guests: Fleet
    pacer: Pacer
