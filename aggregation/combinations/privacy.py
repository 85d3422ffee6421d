"""What is incompatible with differential privacy: a table for each unit, with the reason and what to choose instead."""

from typing import Final

from coterie import errors
from coterie.aggregation.combinations.clash import (
    IN_ROUNDS,
    SELECT_BLINDLY,
    Clash,
    buffers,
    reads_losses,
    rules_of,
    sections_of,
)
from coterie.aggregation.horizontal.algorithm import Rules
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.terms import Terms
from coterie.protocol.codecs.table import varying
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel

_COUNT_ALIKE: Final = "set weight_cap=1 in the round policy, so that every device counts alike"
_MEASURE_CENTRALLY: Final = "set evaluate_every=0 and give the coordinator evaluation rows"
_CHANGE_ALONE: Final = "choose FedAvg, FedProx or another method that sends the change only"


def _uneven_weights(terms: Terms) -> str | None:
    cap = terms.rounds.weight_cap
    return f"weight_cap={cap}" if cap != 1 else None


def _devices_measure(terms: Terms) -> str | None:
    every = terms.rounds.evaluate_every
    return f"evaluate_every={every}" if every else None


def _varying_sizes(terms: Terms) -> str | None:
    found = varying(terms.codecs)
    return f"codecs={found!r}" if found else None


def _sends_more(terms: Terms) -> str | None:
    alone = [spec.name for spec in sections_of(terms)] == [DELTA]
    return None if alone else f"algorithm {terms.algorithm.name!r}"


def _user_level(terms: Terms) -> UserLevel:
    if not isinstance(terms.privacy, UserLevel):
        raise errors.InternalError("Only experiments with user-level privacy are held to its rules.")
    return terms.privacy


def _noise_of_one_sum(terms: Terms) -> str | None:
    asked = _user_level(terms)
    if terms.secure is None or terms.secure.groups is None:
        return None
    if asked.adaptive is not None:
        return "an adaptive clip in groups"
    return None if asked.mechanism == "gaussian" else f"mechanism={asked.mechanism!r} in groups"


USER: tuple[Clash, ...] = (
    Clash(
        _uneven_weights,
        "weights by examples let one device move the sum by more than the noise covers",
        _COUNT_ALIKE,
    ),
    Clash(
        _devices_measure,
        "what devices measure would be released without noise",
        _MEASURE_CENTRALLY,
    ),
    Clash(
        lambda t: f"reducer={t.reducer!r}" if t.reducer != "mean" and not (t.secure and t.secure.groups) else None,
        "how far one device can move a robust rule is unknown, so its noise cannot be calibrated",
        "choose reducer='mean', whose clip bounds what one device does, or SecureAggregation(groups=...), which gives "
        "the rule the means of groups, each with all of the noise",
    ),
    Clash(
        buffers,
        "what is released is the sum of one round's devices, each once",
        IN_ROUNDS,
    ),
    Clash(
        reads_losses,
        "it reads the loss of single clients, which is released without noise",
        SELECT_BLINDLY,
    ),
    Clash(
        _sends_more,
        "it sends more than the change of the weights, and only that is clipped and noised",
        _CHANGE_ALONE,
    ),
    Clash(
        _varying_sizes,
        "the bytes of a round are on its record, and with this codec they depend on what devices send, without noise",
        "choose a codec of fixed size, such as float16, int8, eden:4 or randk:0.1",
    ),
    Clash(
        lambda t: (
            f"mechanism={_user_level(t).mechanism!r}"
            if _user_level(t).mechanism in DISTRIBUTED and not t.secure
            else None
        ),
        "devices add only a share of the noise, so each must hide in a sum",
        "set secure_aggregation=True, or choose mechanism='gaussian'",
    ),
    Clash(
        lambda t: (
            f"mechanism={_user_level(t).mechanism!r}"
            if _user_level(t).mechanism in DISTRIBUTED and _user_level(t).adaptive
            else None
        ),
        "the clip bits of an adaptive clip would need shares of noise of their own",
        "leave adaptive out, or choose mechanism='gaussian'",
    ),
    Clash(
        _noise_of_one_sum,
        "it is made for one sum of all devices, and every group's sum needs noise of its own",
        "leave groups out, or choose mechanism='gaussian' without adaptive, which noises each group in full",
    ),
)
"""With `UserLevel`."""

# Of noise that is added on the device.
_WEIGHTS_TELL_ROWS = Clash(
    _uneven_weights, "a weight by examples would reveal how many rows a device has", _COUNT_ALIKE
)
_LOSSES_LEAVE = Clash(
    reads_losses, "it reads the loss of single clients, which would leave them without noise", SELECT_BLINDLY
)

LOCAL: tuple[Clash, ...] = (
    _WEIGHTS_TELL_ROWS,
    Clash(
        _devices_measure,
        "what devices measure would leave them without noise",
        _MEASURE_CENTRALLY,
    ),
    _LOSSES_LEAVE,
    Clash(
        _sends_more,
        "it sends more than the change of the weights, and only that is noised",
        _CHANGE_ALONE,
    ),
)
"""With `LocalLevel`."""


def _example_level(terms: Terms) -> ExampleLevel:
    if not isinstance(terms.privacy, ExampleLevel):
        raise errors.InternalError("Only experiments with example-level privacy are held to its rules.")
    return terms.privacy


EXAMPLE: tuple[Clash, ...] = (
    Clash(
        lambda t: "precision" if t.training.precision else None,
        "its bound on a row's gradient is proven for float32 alone",
        "leave precision out",
    ),
    Clash(
        lambda t: "no number of rows" if _example_level(t).rows is None else None,
        "what a step costs depends on how likely a row is to be in its batch, and that must be public",
        "give ExampleLevel(rows=...), how many rows a device has at least",
    ),
    _WEIGHTS_TELL_ROWS,
    Clash(
        _devices_measure,
        "what devices measure on their rows would leave them without noise",
        _MEASURE_CENTRALLY,
    ),
    _LOSSES_LEAVE,
    Clash(
        lambda t: f"algorithm {t.algorithm.name!r}" if t.algorithm.client.probe else None,
        "it sums over a device's rows before it trains, without noise",
        "choose FedAvg, FedProx, SCAFFOLD or another method without a probe",
    ),
    Clash(
        lambda t: (
            f"holdout={t.training.holdout:g}" if t.training.holdout and t.schema.label.others == "dropped" else None
        ),
        "rows are held out by position, and a row that the label's classes drop shifts all rows after it",
        "set holdout=0",
    ),
)
"""With `ExampleLevel`. Models whose rows see each other (BatchNorm) are refused when the plan is compiled."""


def privacy_clashes(terms: Terms) -> Rules:
    """What the privacy asked for excludes, as rules: (holds, what is said)."""
    asked = terms.privacy
    if asked is None:
        return ()
    match asked:
        case UserLevel():
            return rules_of(USER, terms, "UserLevel privacy")
        case ExampleLevel():
            return rules_of(EXAMPLE, terms, "ExampleLevel privacy")
        case LocalLevel():
            return rules_of(LOCAL, terms, "LocalLevel privacy")
