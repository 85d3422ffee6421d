"""One network over the columns of two organisations, of which each keeps its part, and what its messages tell.

    python examples/split_network.py

The breast cancer data of scikit-learn, cut in two: a clinic has five columns and the diagnosis, a laboratory the other
25 columns of the same people. The laboratory's part makes four numbers of a row, the clinic's goes on from there.
Printed is the AUC on a held-out third, with the laboratory's columns and with zeros in their place, how many bytes
pass, and how well the laboratory could guess diagnoses by the gradients that it gets, with and without noise on them.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

from coterie.aggregation.vertical.split import FeatureRole, LabelRole, SplitNetwork
from coterie.aggregation.whole_metrics import auc
from coterie.compute import nn, optim
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.protocol.cut import CutPolicy, GradientNoise
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import VerticalRun, simulate_vertical

OWN = ("mean texture", "mean smoothness", "mean symmetry", "texture error", "symmetry error")


def network(cut: CutPolicy) -> SplitNetwork:
    """The network of both."""
    return SplitNetwork(
        name="diagnosis",
        features=(
            FeatureRole(role="laboratory", features=(Feature(name="scan", shape=(25,)),), model=nn.Linear(25, 4)),
        ),
        labels=LabelRole(
            role="clinic",
            schema=DataSchema((Feature(name="own", shape=(5,)),), Label(name="benign", classes=(0, 1))),
            model=nn.Linear(5, 4),
            top=nn.Sequential(nn.Tanh(), nn.Linear(8, 2)),
        ),
        loss=softmax_cross_entropy,
        optimizer=optim.adam(0.02),
        batch_size=64,
        epochs=8,
        cut=cut,
    )


def main() -> None:
    """Trains three times."""
    data = load_breast_cancer()
    whole = ((data.data - data.data.mean(axis=0)) / data.data.std(axis=0)).astype(np.float32)
    at_clinic = np.isin(data.feature_names, OWN)
    held_out = np.random.default_rng(0).random(len(whole)) < 1 / 3

    def rows(chosen: np.ndarray, scan: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        own = {"own": whole[:, at_clinic][chosen], "benign": data.target.astype(np.int32)[chosen]}
        return {"clinic": own, "laboratory": {"scan": scan[chosen]}}

    def trained(scan: np.ndarray, cut: CutPolicy) -> tuple[VerticalRun, float]:
        run = simulate_vertical(network(cut), rows(~held_out, scan), seed=1)
        given = rows(held_out, scan)
        scores = run.predict({role: {k: v for k, v in part.items() if k != "benign"} for role, part in given.items()})
        return run, auc((scores[:, 1] - scores[:, 0]).astype(np.float64), given["clinic"]["benign"].astype(np.float64))

    scan = whole[:, ~at_clinic]
    joint, good = trained(scan, CutPolicy())
    _, alone = trained(np.zeros_like(scan), CutPolicy())
    print(f"AUC on rows held out: {good:.3f}, of the clinic alone {alone:.3f}")
    for (sender, recipient), traffic in sorted(joint.traffic.items()):
        print(f"  {sender} to {recipient}: {traffic.messages} messages, {traffic.size / 1e3:.0f} kB")

    noisy, still = trained(scan, CutPolicy(gradient=GradientNoise(kind="gaussian", scale=5.0)))
    for what, run in (("without noise", joint), ("with noise", noisy)):
        print(f"Diagnoses told by gradients {what}: {run.label_leak('laboratory').direction:.3f} (0.5 tells nothing)")
    print(f"AUC with noise on gradients: {still:.3f}")


if __name__ == "__main__":
    main()
