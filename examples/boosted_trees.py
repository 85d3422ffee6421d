"""What a partner's columns are worth: trees of two organisations that show each other nothing.

    python examples/boosted_trees.py [--encrypted]

The breast cancer data of scikit-learn, cut in two: a clinic has five columns and the diagnosis, a laboratory the other
25 columns of the same people. Printed is the AUC on a held-out third with and without the laboratory, and what columns
gained. ``--encrypted`` grows the first three trees again as the two would in a session, under encryption (about 1200
ciphertexts), and compares.
"""

import argparse
from dataclasses import replace

import numpy as np
from sklearn.datasets import load_breast_cancer

from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.simulation.trees import simulate_trees


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What a partner's columns are worth.")
    parser.add_argument("--encrypted", action="store_true")
    options = parser.parse_args()
    data = load_breast_cancer()
    whole = dict(zip(data.feature_names, data.data.T, strict=True))
    own = ("mean texture", "mean smoothness", "mean symmetry", "texture error", "symmetry error")
    other = tuple(name for name in whole if name not in own)
    tables = {
        "clinic": {**{name: whole[name] for name in own}, "benign": data.target},
        "laboratory": {name: whole[name] for name in other},
    }
    columns = {"clinic": own, "laboratory": other}
    held_out = np.random.default_rng(0).random(len(data.target)) < 1 / 3

    terms = TreeTerms(label_owner="clinic", feature_owners=("laboratory",), trees=30)
    asked = {"columns": columns, "label": "benign", "held_out": held_out}
    joint = simulate_trees(terms, tables, encrypted=False, **asked)
    useless = {name: np.zeros(len(data.target)) for name in other}
    alone = simulate_trees(terms, {**tables, "laboratory": useless}, encrypted=False, **asked)
    print(f"AUC on rows held out: {joint.report.held_out_auc:.3f}, of the clinic alone {alone.report.held_out_auc:.3f}")
    for name, gain in list(joint.importance().items())[:5]:
        print(f"  {name}: gained {gain:.0f}")

    if options.encrypted:
        few = replace(terms, trees=3)
        apart = simulate_trees(few, tables, encrypted=True, **asked)
        same = apart.forest == simulate_trees(few, tables, encrypted=False, **asked).forest
        sent = ", ".join(f"{role} {count / 1e6:.1f} MB" for role, count in apart.sent.items())
        print(f"Under encryption: {'the same trees' if same else 'OTHER TREES'}; sent: {sent}")


if __name__ == "__main__":
    main()
