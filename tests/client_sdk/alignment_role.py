"""One party of an alignment as a program: ``alignment_role URL FOLDER TOKEN ROLE``. Started again on the same folder,
it makes the same call.

Prints one JSON object: the ids of the common rows in their order.
"""

import json
import sys
from pathlib import Path

from coterie.client_sdk.party.alignment import align
from coterie.client_sdk.party.party import Party
from coterie.client_sdk.party.pins import trust_first_use
from tests.client_sdk.role_session import joined
from tests.patience import patience

IDS = {
    "owner": [f"person-{number}" for number in range(60)],
    "feature": [f"person-{number}" for number in reversed(range(35, 90))],
}


def main(url: str, folder: Path, token: str, role: str) -> None:
    """The whole call."""
    with Party(folder / "party", judge=trust_first_use) as party:
        session = joined(party, url, token)
        found = align(session, IDS[role], patience_s=patience(100))
        rows: list[int] = [] if found.rows is None else found.rows.tolist()
        print(json.dumps([IDS[role][row] for row in rows]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
