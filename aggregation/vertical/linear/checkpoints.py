"""States of linear models as arrays that can be kept, and back."""

import json

import numpy as np

from coterie.aggregation.vertical.linear.feature_side import Opening
from coterie.aggregation.vertical.linear.model import Coefficients, RoleModel
from coterie.privacy.he.key_arrays import public_arrays, public_key
from coterie.protocol.arrays import ArraysByName

FITTED = "model_columns"
"""An array that is there when a model is fitted."""


def opening_arrays(opening: Opening) -> ArraysByName:
    """What the label owner has told."""
    return {
        **public_arrays(opening.key),
        "used": opening.used,
        "label_columns": np.array([opening.columns], np.int64),
        "second": np.array([opening.second]),
    }


def opening_of(arrays: ArraysByName) -> Opening:
    """The value of `opening_arrays`."""
    columns, second = int(arrays["label_columns"][0]), float(arrays["second"][0])
    return Opening(public_key(arrays), np.array(arrays["used"]), columns, second)


def coefficient_arrays(now: Coefficients) -> ArraysByName:
    """How far a role is."""
    return {"values": now.values, "velocity": now.velocity, "steps": np.array([now.steps], np.int64)}


def coefficients_of(arrays: ArraysByName) -> Coefficients:
    """The state of `coefficient_arrays`."""
    return Coefficients(np.array(arrays["values"]), np.array(arrays["velocity"]), int(arrays["steps"][0]))


def model_arrays(model: RoleModel, unit: tuple[float, float] = (0.0, 1.0)) -> ArraysByName:
    """A fitted model. unit: of the labels, for their owner."""
    return {
        FITTED: np.frombuffer(json.dumps(model.columns).encode(), np.uint8),
        "model_slopes": np.array(model.slopes, np.float64),
        "model_offset": np.array([model.offset, *unit]),
    }


def model_of(arrays: ArraysByName) -> tuple[RoleModel, tuple[float, float]]:
    """The model and the unit of `model_arrays`."""
    offset, middle, scale = arrays["model_offset"].tolist()
    columns = tuple(json.loads(arrays[FITTED].tobytes()))
    return RoleModel(columns, tuple(arrays["model_slopes"].tolist()), offset), (middle, scale)
