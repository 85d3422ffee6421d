"""One role of a linear model as a program: ``linear_role URL FOLDER TOKEN ROLE``. Started again on the same folder, it
makes the same calls. Prints one JSON object: the role's model, and what the label owner knows beside.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.client_sdk.party.linear_learner import LinearLearner
from coterie.client_sdk.party.party import Party
from coterie.client_sdk.party.pins import trust_first_use
from coterie.protocol.conversion import to_json
from tests.client_sdk.role_session import joined
from tests.patience import patience

ROWS = 40
TERMS = LinearTerms(label_owner="owner", feature_owners=("feature",), epochs=3, key_bits=2048)


def rows(role: str) -> dict[str, Any]:
    """The rows of a role."""
    rng = np.random.default_rng(7)
    scan, blood = rng.normal(size=(ROWS, 2)), rng.normal(size=(ROWS, 1))
    ill = (scan.sum(axis=1) + blood.sum(axis=1) > 0).astype(np.float64)
    return {"s0": scan[:, 0], "s1": scan[:, 1]} if role == "feature" else {"b0": blood[:, 0], "ill": ill}


def columns(role: str) -> dict[str, Any]:
    """What a `LinearLearner` is told of them."""
    return {"columns": ("s0", "s1")} if role == "feature" else {"columns": ("b0",), "label": "ill"}


def main(url: str, folder: Path, token: str, role: str) -> None:
    """All calls."""
    with Party(folder / "party", judge=trust_first_use) as party:
        session = joined(party, url, token)
        learner = LinearLearner(session, TERMS, folder / "linear", **columns(role), patience_s=patience(200))
        report = learner.train(rows(role))
        predicted = learner.predict(rows(role))
        told: dict[str, Any] = {"model": to_json(learner.model)}
        if predicted is not None:
            told |= {"predicted": predicted.tolist(), "report": to_json(report)}
        print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
