"""One role of a split network as a program: ``split_role URL FOLDER TOKEN ROLE``. Started again on the same folder, it
makes the same calls. Leaves its report in its folder, `REPORT`.

Every weight begins at a number of its own name, so that two runs can be compared bit for bit. Prints one JSON object:
digests of its part of the model, the metric sums of each epoch, and the predictions.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.split import FeatureRole, LabelRole, SplitNetwork
from coterie.client_sdk.party.learner import Learner
from coterie.client_sdk.party.party import Party
from coterie.client_sdk.party.pins import trust_first_use
from coterie.client_sdk.party.plans import receive_plan, send_plan
from coterie.compute import nn, optim
from coterie.compute.nn import losses
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.schema import DataSchema, Feature, Label
from tests.client_sdk.role_session import joined
from tests.patience import patience

ROWS, EPOCHS, STEPS = 22, 3, 3
"""Of the network below: its rows, and how many steps each of its epochs has."""
REPORT = "party.report"


class Fixed(nn.Module):
    """A matrix that starts at one number."""

    def __init__(self, inputs: int, outputs: int, value: float) -> None:
        self._shape, self._value = (inputs, outputs), value

    def specs(self) -> dict[str, nn.ParameterSpec]:
        """The matrix."""
        return {"weight": nn.ParameterSpec(self._shape, nn.Constant(self._value))}

    def __call__(self, params: Any, x: Any, mode: Any = nn.EVAL) -> Any:
        """Rows times the matrix."""
        return x @ params["weight"]


def network() -> SplitNetwork:
    """Two roles."""
    return SplitNetwork(
        name="fixed",
        features=(FeatureRole(role="feature", features=(Feature(name="scan", shape=(3,)),), model=Fixed(3, 2, 0.3)),),
        labels=LabelRole(
            role="owner",
            schema=DataSchema((Feature(name="blood", shape=(2,)),), Label(name="ill", classes=(0, 1))),
            model=Fixed(2, 2, 0.2),
            top=nn.Sequential(Fixed(4, 3, 0.1), nn.Tanh(), Fixed(3, 2, 0.4)),
        ),
        loss=losses.softmax_cross_entropy,
        optimizer=optim.adam(0.05),
        batch_size=8,
        epochs=EPOCHS,
    )


def rows(role: str) -> dict[str, Any]:
    """The rows of a role."""
    rng = np.random.default_rng(7)
    scan, blood = rng.normal(size=(ROWS, 3)).astype(np.float32), rng.normal(size=(ROWS, 2)).astype(np.float32)
    ill = (scan.sum(axis=1) + blood.sum(axis=1) > 0).astype(np.int32)
    return {"scan": scan} if role == "feature" else {"blood": blood, "ill": ill}


def main(url: str, folder: Path, token: str, role: str) -> None:
    """All calls."""
    with Party(folder / "party", judge=trust_first_use) as party:
        session = joined(party, url, token)
        if role == "owner":
            plan = compile_split(network())
            send_plan(session, plan)
        else:
            plan = receive_plan(session, "owner", folder / "plan", patience_s=patience(100))
        given = rows(role)
        learner = Learner(session, plan, folder / "learning", columns=given, patience_s=patience(100))
        trained = learner.train(given)
        measured = learner.evaluate(given)
        predicted = learner.predict({name: value for name, value in given.items() if name != "ill"})
        (folder / REPORT).write_bytes(session.report().to_bytes())
        print(
            json.dumps(
                {
                    "state": {name: sha256_hex(np.asarray(v).tobytes()) for name, v in learner.client_state.items()},
                    "epochs": [dict(each.sums) for each in trained],
                    "measured": dict(measured.sums),
                    "predicted": None if predicted is None else sha256_hex(predicted.tobytes()),
                }
            )
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
