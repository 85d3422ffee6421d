"""A model that clients train with code of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from coterie import errors


@dataclass(frozen=True)
class ExternalModel:
    """A model that clients train with code of their own (PyTorch, scikit-learn, …): only its parameters are known
    here.

    parameters: shapes by name, () for a scalar; the order is that of the layout. They begin at zeros, or as
        ``Experiment(initial=)`` says, which is needed where there is more than one matrix.
    metrics: what the clients' evaluation reports beside the loss.
    Raises errors.ExperimentError naming a shape that no array of parameters has.
    """

    parameters: Mapping[str, Sequence[int]]
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.parameters), Mapping) or isinstance(cast(object, self.metrics), str):
            raise errors.ExperimentError(
                "An ExternalModel has a mapping of names to shapes and a tuple of metric names, as in "
                "ExternalModel({'coef': (3, 4), 'intercept': (3,)}, metrics=('accuracy',)).",
                code="experiment_invalid",
            )
        for name, shape in self.parameters.items():
            if not is_shape(shape) and shape not in ((), []):
                raise errors.ExperimentError(
                    f"Parameter {name!r} of the ExternalModel has the shape {shape!r}; it must be one or more whole "
                    "numbers of at least 1, or () for a scalar.",
                    code="experiment_invalid",
                )


def is_shape(shape: object) -> bool:
    """Whether it is a tuple or list of one or more whole numbers of at least 1: what the layout can hold."""
    sizes = cast(Sequence[object], shape) if isinstance(shape, tuple | list) else ()
    return bool(sizes) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sizes)
