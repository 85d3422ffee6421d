"""Sequences of arrays, as PyTorch writes what its ``split`` and ``chunk`` give: resolved when the file is read."""

from collections.abc import Sequence
from dataclasses import replace

from coterie.compute.onnx.importer.graph import Step

_CUT, _PART = "SplitToSequence", "SequenceAt"


def with_parts_of_sequences(steps: Sequence[Step]) -> list[Step]:
    """The steps, each SequenceAt of a SplitToSequence reading the array that is cut.

    Its inputs are then that array, how it is cut (or nothing) and which part. A sequence that is read otherwise stays,
    and is refused by name.
    """
    cuts = {step.outputs[0]: step for step in steps if step.operator == _CUT and step.outputs}
    parted = [_parted(step, cuts) for step in steps]
    read = {name for step in parted for name in step.inputs}
    return [step for step in parted if step.operator != _CUT or read.intersection(step.outputs)]


def _parted(step: Step, cuts: dict[str, Step]) -> Step:
    if step.operator != _PART or len(step.inputs) < 2 or step.inputs[0] not in cuts:
        return step
    cut = cuts[step.inputs[0]]
    array, *how = cut.inputs
    return replace(step, inputs=(array, how[0] if how else "", step.inputs[1]), attributes=cut.attributes)
