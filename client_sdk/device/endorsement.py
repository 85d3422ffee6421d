"""A device's endorsement: the file that brings it, and the copy in the device's folder."""

from pathlib import Path
from typing import Final

from coterie.client_sdk.device.store import DeviceStore
from coterie.errors import ConfigurationError
from coterie.protocol.canonical import canonical_json
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.files import write_durably

FILE: Final = "endorsement.json"


def read_endorsement(path: Path) -> Endorsement:
    """The endorsement in a file. Raises ConfigurationError (``endorsement_file``) for any other file."""
    try:
        return Endorsement.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not an endorsement: {str(error).splitlines()[0]}.",
            hint="Give a file that `coterie identities endorse` wrote.",
            code="endorsement_file",
        ) from error


def stored_endorsement(store: DeviceStore, fresh: Endorsement | None) -> Endorsement | None:
    """The endorsement of a device's key: the one given, which its folder keeps from now on, or the one kept before.

    Raises ConfigurationError: ``endorsement_other`` for one that is of another key or is not signed;
    ``endorsement_file``.
    """
    path = store.folder / FILE
    endorsement = read_endorsement(path) if fresh is None and path.exists() else fresh
    if endorsement is not None and not endorsement.is_for(store.key.public, (endorsement.issuer,)):
        raise ConfigurationError(
            f"The endorsement is not of this device, whose public key is {store.key.public}.",
            hint="Ask the issuer for one of that key (coterie identities endorse).",
            code="endorsement_other",
        )
    if fresh is not None:
        write_durably(path, canonical_json(fresh.model_dump(mode="json")), mode=0o600)
    return endorsement
