"""Every way in which an update can be wrong, by its code."""

from collections.abc import Mapping

from coterie import errors

REFUSALS: Mapping[str, str] = {
    "wrong_format": "the file is not a tensor file, or its header is not an update header of a known version",
    "truncated": "the file or a section's payload is shorter than it must be",
    "too_large": "the file or a section's payload is larger than allowed",
    "wrong_task": "it was made for another task",
    "wrong_plan": "it was made with another plan",
    "wrong_base": "it was trained from another model version",
    "unknown_section": "it has a section that the plan does not name",
    "missing_section": "a section that the plan names is absent",
    "wrong_length": "a section does not have the plan's number of elements",
    "unknown_codec": "a section uses a codec that does not exist or is not allowed there",
    "malformed": "a payload holds bytes that no encoder writes",
    "not_finite": "a value is NaN or infinite",
    "out_of_range": "a value is outside the section's range or the codec's",
    "bad_weight": "the weight is not a whole number from 0 to the cap of each client",
    "bad_steps": "the number of steps is not a whole number from 0 to the cap of each client",
    "bad_clients": "the number of clients is not 1 for an update, or not within the bounds for an accumulator",
    "partial_update": "it covers a part of the model where a rule or noise needs all of it",
    "wrong_kind": "an accumulator arrived where an update is expected, or vice versa",
}


def refused(code: str, message: str) -> errors.UpdateRefused:
    """The error of that code.

    message: a sentence without its full stop.
    """
    return errors.UpdateRefused(f"{message}.", code=code)
