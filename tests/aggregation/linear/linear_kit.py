"""Rows of two roles, the bank with the label and the bureau with columns alone, for linear models."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.aggregation.vertical.linear.feature_side import LinearFeatureSetting, feature_data
from coterie.aggregation.vertical.linear.label_side import LinearLabelSetting, label_data
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.keys import PaillierPrivateKey
from coterie.protocol.session_job import LinkName

COLUMNS = {"bank": ("b0", "b1"), "bureau": ("a0", "a1", "a2")}
SEED = bytes(range(32))


def terms_of(link: LinkName = "logistic", **changes: Any) -> LinearTerms:
    """Short terms."""
    asked: dict[str, Any] = {"link": link, "epochs": 2, "key_bits": 2048, **changes}
    return LinearTerms(label_owner="bank", feature_owners=("bureau",), **asked)


def tables_of(link: LinkName, rows: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Columns of which the label depends on all, on scales of their own."""
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(size=(rows, 2)), rng.normal(size=(rows, 3))
    theirs[:, 2] += 0.5 * ours[:, 0]
    score = ours @ [0.7, 0.3] + theirs @ [1.0, -0.5, 0.2] - 0.3
    label = {
        "logistic": lambda: (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(float),
        "linear": lambda: 100 + 20 * (score + 0.1 * rng.normal(size=rows)),
        "poisson": lambda: rng.poisson(np.exp(score / 2)).astype(float),
    }[link]()
    weight = 1.0 + (np.arange(rows) % 3)
    return {
        "bank": {"b0": 50 + 10 * ours[:, 0], "b1": ours[:, 1] / 100, "label": label, "weight": weight},
        "bureau": {f"a{n}": theirs[:, n] * 3**n for n in range(3)},
    }


def settings_of(
    terms: LinearTerms, tables: Mapping[str, Mapping[str, Any]], key: PaillierPrivateKey, opening: Any = None
) -> tuple[LinearLabelSetting, LinearFeatureSetting | None]:
    """What both sides work with; the feature owner's only after an opening."""
    own = {name: tables["bank"][name] for name in COLUMNS["bank"]}
    labels = tables["bank"]["label"]
    data = label_data(terms, own, labels, np.empty(0), np.zeros(len(labels), np.bool_), SEED)
    label = LinearLabelSetting(terms, data, data.curvature(terms.l2), SEED, CipherPool(key))
    if opening is None:
        return label, None
    theirs = feature_data(terms, dict(tables["bureau"]), len(labels), opening.used, opening.second)
    return label, LinearFeatureSetting(terms, "bureau", opening, theirs, SEED, CipherPool(key.public))
