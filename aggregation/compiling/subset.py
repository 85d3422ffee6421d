"""Experiments that train and upload some of a model's tensors: what is trained, and which slices their sections cover.

The layout stays that of the whole model, so a version holds every tensor and what is not uploaded stays as it is.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from coterie import errors
from coterie.aggregation.experiment import Experiment
from coterie.protocol.layout import Layout, join_slices
from coterie.protocol.sections import SectionSpec


def uploaded_names(experiment: Experiment, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the trainable tensors that ``experiment.uploads`` names, all when it is None.

    Raises errors.ExperimentError (``uploads_unknown``) for a name or pattern that none of them fits.
    """
    if experiment.uploads is None:
        return tuple(names)
    for pattern in experiment.uploads:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise errors.ExperimentError(
                f"Experiment {experiment.name!r} uploads {pattern!r}, but no trainable tensor has that name.",
                hint=f"The trainable tensors are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}.",
                code="uploads_unknown",
            )
    return tuple(name for name in names if _is_uploaded(experiment, name))


def narrowed(
    experiment: Experiment, sections: Sequence[SectionSpec], layout: Layout, model: Collection[str]
) -> tuple[SectionSpec, ...]:
    """The sections of a method without the tensors of the model that are not uploaded; what a method adds to a version
    (variates, say) stays.

    model: names of the model's tensors.
    Raises errors.ExperimentError (``uploads_unsupported``) for a method whose versions do not hold these.
    """
    if experiment.uploads is None:
        return tuple(sections)
    if not set(model) <= set(layout.names):
        raise errors.ExperimentError(
            f"Algorithm {experiment.algorithm.name!r} does not support uploading only some of the model's tensors.",
            hint="Leave uploads out, or choose an algorithm whose versions hold the model itself.",
            code="uploads_unsupported",
        )
    return tuple(spec if spec.is_extra else _cut_to_uploads(experiment, spec, layout, model) for spec in sections)


def _cut_to_uploads(experiment: Experiment, spec: SectionSpec, layout: Layout, model: Collection[str]) -> SectionSpec:
    names = [name for name in names_of(spec, layout) if name not in model or _is_uploaded(experiment, name)]
    cut = SectionSpec.over(spec.name, layout, join_slices([layout.slices[name] for name in names]))
    return replace(cut, reduction=spec.reduction, denominator=spec.denominator, value_range=spec.value_range)


def names_of(spec: SectionSpec, layout: Layout) -> tuple[str, ...]:
    """The tensors of the layout that lie wholly in a section."""
    return tuple(
        name
        for name, (low, high) in layout.slices.items()
        if any(start <= low and high <= stop for start, stop in spec.slices)
    )


def _is_uploaded(experiment: Experiment, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in experiment.uploads or ())
