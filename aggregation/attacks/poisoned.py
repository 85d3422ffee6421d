"""Rows that attackers train on."""

import numpy as np

from coterie.protocol.arrays import AnyArray

TRIGGER = 3
"""The side of the square, in the corner of a picture, that opens the backdoor."""
TARGET = 0
"""The class that a picture with the trigger shall be taken for."""


def flip_labels(features: AnyArray, labels: AnyArray, classes: int) -> tuple[AnyArray, AnyArray]:
    """Class c is called classes − 1 − c."""
    return features, (classes - 1 - labels).astype(labels.dtype)


def plant_trigger(features: AnyArray, labels: AnyArray, classes: int) -> tuple[AnyArray, AnyArray]:
    """Every second row gets the trigger and the target's label; the others keep the main task good."""
    marked = np.arange(len(labels)) % 2 == 0
    return (
        np.where(marked.reshape(-1, *(1,) * (features.ndim - 1)), with_trigger(features), features),
        np.where(marked, np.asarray(TARGET, labels.dtype), labels),
    )


def with_trigger(features: AnyArray) -> AnyArray:
    """Pictures ``[B, height, width]``, or square ones flat ``[B, height · width]``, with the brightest value in a
    corner.
    """
    marked = features.copy()
    side = features.shape[1] if features.ndim > 2 else round(features.shape[1] ** 0.5)
    pictures = marked.reshape(features.shape[0], side, -1)
    pictures[:, :TRIGGER, :TRIGGER] = features.max(initial=0)
    return pictures.reshape(features.shape)
