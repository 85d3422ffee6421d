"""Pins: the identities of partners that this party has accepted, by the partner's name, in a file of its own.

The coordinator tells which key a partner has; that word never makes or replaces a pin. A pin is made from a list that
was given in advance, or on first use by somebody who has compared the fingerprint with the partner over another
channel.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pydantic import ValidationError

from coterie.errors import ConfigurationError, Forbidden, InputError
from coterie.protocol.canonical import canonical_json
from coterie.protocol.files import write_durably
from coterie.protocol.session import fingerprint
from coterie.protocol.wire import Response

PINS: Final = "partners.json"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Stranger:
    """A partner whose key is not pinned.

    partner: its name.
    fingerprint: of the key that it signed with.
    """

    partner: str
    role: str
    fingerprint: str


Judge: TypeAlias = Callable[[Stranger], bool]
"""Says whether a stranger's fingerprint is to be pinned."""


def refuse(stranger: Stranger) -> bool:
    """Pin nobody on first use: partners come from the list alone."""
    return False


def trust_first_use(stranger: Stranger) -> bool:
    """Pin whoever comes first under a name."""
    return True


class _File(Response):
    partners: dict[str, str] = {}


def read_fingerprint(text: str) -> str:
    """A fingerprint as `fingerprint` writes it, from text with or without dashes, colons and spaces.

    Raises InputError (``fingerprint_invalid``).
    """
    digits = re.sub(r"[-: ]", "", text).lower()
    if _FINGERPRINT.fullmatch(digits) is None:
        raise InputError(
            f"{text[:80]!r} is not a fingerprint, which has 64 hexadecimal digits.",
            hint="Ask the partner for the fingerprint that `coterie party show` prints there.",
            code="fingerprint_invalid",
        )
    return "-".join(digits[first : first + 8] for first in range(0, 64, 8))


def read_pins(path: Path) -> Mapping[str, str]:
    """Fingerprints by the name of the partner, from a file of pins.

    Raises ConfigurationError (``pins_unreadable``) for a file of another form, FileNotFoundError.
    """
    try:
        found = _File.model_validate_json(path.read_bytes())
        return {name: read_fingerprint(text) for name, text in found.partners.items()}
    except (ValidationError, InputError) as error:
        raise ConfigurationError(
            f'{path} is not a list of partners: it must read {{"partners": {{"NAME": "FINGERPRINT", …}}}}.',
            hint="Restore it from a copy, or fix it by hand.",
            code="pins_unreadable",
        ) from error


class Pins:
    """The pins in a party's folder. Raises ConfigurationError (``pins_unreadable``) for a file of another form."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / PINS

    def all(self) -> Mapping[str, str]:
        """Fingerprints by the name of the partner."""
        try:
            return read_pins(self.path)
        except FileNotFoundError:
            return {}

    def pin(self, partner: str, text: str) -> str:
        """Pin a partner's fingerprint, in place of an earlier one: its owner's decision, never the coordinator's word.

        Returns the fingerprint. Raises InputError (``fingerprint_invalid``), StorageError.
        """
        found = read_fingerprint(text)
        self._write({**self.all(), partner: found})
        return found

    def check(self, partner: str, role: str, identity: str, judge: Judge) -> None:
        """Return only if the identity is the one pinned for this partner, or was pinned now by ``judge``.

        identity: Ed25519 public key, hex.
        Raises Forbidden: ``partner_changed`` with both fingerprints, ``partner_unknown``.
        """
        pinned, shown = self.all().get(partner), fingerprint(identity)
        if pinned == shown:
            return
        if pinned is not None:
            raise Forbidden(
                f"The key of {partner} (role {role}) has changed: {pinned} is pinned, and {shown} was presented.",
                hint="Ask the partner over another channel. If it has a new key, pin the fingerprint that it tells you "
                f"(`coterie party pin`, or {self.path}); otherwise somebody intercepts the messages.",
                code="partner_changed",
                pinned=pinned,
                came=shown,
            )
        if not judge(Stranger(partner, role, shown)):
            raise Forbidden(
                f"The key of {partner} (role {role}) is not pinned; its fingerprint is {shown}.",
                hint="Compare it with the partner over another channel, then pin it "
                f"(`coterie party pin`, or {self.path}), or allow first use.",
                code="partner_unknown",
                came=shown,
            )
        self.pin(partner, shown)

    def _write(self, partners: Mapping[str, str]) -> None:
        write_durably(self.path, canonical_json({"partners": dict(partners)}), mode=0o600)
