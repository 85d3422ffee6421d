"""What is incompatible with secure aggregation or differential privacy: one table, with the reason and what to
choose instead.

Secure aggregation is on by default from a cohort of ten; a clash is refused all the same, never silently resolved, so
that nobody runs in the open who did not say so.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coterie import errors
from coterie.aggregation.horizontal.algorithm import Rules, Shapes
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.private.secure_aggregation import FROM_COHORT, mode_for
from coterie.aggregation.selection import selector_of
from coterie.aggregation.terms import Terms
from coterie.privacy.secagg.parameters import FEWEST_CLIENTS, parameters
from coterie.protocol.codecs.table import varying
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_aggregation import SecureAggregation

_RING = (1 << 32) - 1


@dataclass(frozen=True)
class Clash:
    """Two wishes that exclude each other.

    holds(terms): what of it is in the way, as the researcher wrote it; None where nothing is.
    because: why.
    instead: what to choose.
    """

    holds: Callable[[Terms], str | None]
    because: str
    instead: str


def _secure(terms: Terms) -> SecureAggregation:
    if terms.secure is None:
        raise errors.InternalError("Only experiments with secure aggregation are held to its rules.")
    return terms.secure


def _groups_of(terms: Terms) -> int | None:
    groups = _secure(terms).groups
    return None if groups is None else terms.rounds.cohort // groups


def _sections(terms: Terms) -> tuple[SectionSpec, ...]:
    """The sections of the method for a model of one weight: which there are does not depend on the model."""
    shapes = Shapes(tensors={"weight": (1,)}, trained={"weight": (1,)})
    client = terms.algorithm.client
    layout = Layout(tuple(Tensor(name, tuple(shape)) for name, shape in client.version(shapes).items()))
    return client.sections(shapes, layout)


def _keeps_state(terms: Terms) -> str | None:
    name = f"algorithm {terms.algorithm.name!r}"
    return name if terms.algorithm.stateful and _secure(terms).mode == "consistent" else None


def _without_range(terms: Terms) -> str | None:
    named = [spec.name for spec in _sections(terms) if spec.is_extra and spec.value_range is None]
    return f"algorithm {terms.algorithm.name!r} (its section {named[0]!r})" if named else None


def _too_wide(terms: Terms) -> str | None:
    for spec in _sections(terms):
        if spec.reduction == "sum" and spec.value_range is not None:
            low, high = spec.value_range
            if terms.rounds.cohort * (high - low) > _RING:
                return f"cohort={terms.rounds.cohort} with sums up to {high:g} per client"
    return None


def _weights(terms: Terms) -> str | None:
    policy, bits = terms.rounds, _secure(terms).bits or 2
    means = any(spec.reduction == "weighted_mean" for spec in _sections(terms))
    most = policy.cohort * policy.weight_cap * ((1 << bits) - 1 if means else 1)
    return f"weight_cap={policy.weight_cap} for a cohort of {policy.cohort} at {bits} bits" if most > _RING else None


def _without_parameters(terms: Terms) -> str | None:
    secure, policy = _secure(terms), terms.rounds
    mode = mode_for(secure, terms.privacy)
    fewest = policy.min_updates if secure.groups is None else policy.cohort // secure.groups
    for clients in sorted({fewest, _groups_of(terms) or policy.cohort}):
        if clients < FEWEST_CLIENTS:
            continue
        try:
            parameters(clients, corrupt=secure.corrupt, dropout=secure.dropout, mode=mode)
        except errors.ArgumentValueError:
            return f"corrupt={secure.corrupt:g} and dropout={secure.dropout:g} among {clients} clients in mode={mode!r}"
    return None


def _few_groups(terms: Terms) -> str | None:
    each = _groups_of(terms)
    return None if each is None or each >= FEWEST_CLIENTS else f"groups={_secure(terms).groups}"


def _uneven_groups(terms: Terms) -> str | None:
    policy, groups = terms.rounds, _secure(terms).groups
    offers_more = groups is not None and not policy.buffered and policy.tasks() > policy.cohort
    return f"groups={groups} with {policy.tasks()} tasks for a cohort of {policy.cohort}" if offers_more else None


def _buffers(terms: Terms) -> str | None:
    return f"mode={terms.rounds.mode!r}" if terms.rounds.buffered else None


def _reads_losses(terms: Terms) -> str | None:
    asked = terms.rounds.selection
    return f"selection={asked!r}" if selector_of(asked).needs_loss else None


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
    alone = [spec.name for spec in _sections(terms)] == [DELTA]
    return None if alone else f"algorithm {terms.algorithm.name!r}"


_IN_ROUNDS = 'choose mode="synchronous"'
_SELECT_BLINDLY = "choose uniform, weighted, cyclic or least_recent"
_COUNT_ALIKE = "set weight_cap=1 in the round policy, so that every device counts alike"
_MEASURE_CENTRALLY = "set evaluate_every=0 and give the coordinator evaluation rows"
_CHANGE_ALONE = "choose FedAvg, FedProx or another method that sends the change only"
_HIDES_NOBODY = f"a sum of fewer than {FEWEST_CLIENTS} clients hides nobody"

SECURE: tuple[Clash, ...] = (
    Clash(
        _buffers,
        "masks cancel among clients that trained on one version, and a buffer mixes versions",
        _IN_ROUNDS,
    ),
    Clash(
        _reads_losses,
        "it reads the loss of single clients, and only sums are ever seen",
        _SELECT_BLINDLY,
    ),
    Clash(
        lambda t: f"reducer={t.reducer!r}" if t.reducer != "mean" and _secure(t).groups is None else None,
        "it must look at single updates, and only their sum is ever seen",
        "choose reducer='mean', whose clients bound their own norm (SecureAggregation(norm=...)), or "
        "SecureAggregation(groups=...), which gives the rule the means of random groups",
    ),
    Clash(
        lambda t: f"groups={_secure(t).groups}" if t.reducer == "mean" and _secure(t).groups is not None else None,
        "groups show more than one sum does, and a mean of groups is no safer than the mean of all",
        "choose a robust reducer such as nnm(f)+trimmed_mean(f), or leave groups out",
    ),
    Clash(
        _few_groups,
        _HIDES_NOBODY,
        "ask for fewer groups or a larger cohort",
    ),
    Clash(
        _uneven_groups,
        "a round ends with the first to finish, who would fill some groups and leave others too small for a sum",
        "leave over_selection and dropout out of the round policy, or leave groups out",
    ),
    Clash(
        lambda t: f"codecs={t.codecs!r}" if t.codecs != ("float32",) else None,
        "updates are added as whole numbers on a public grid, which no other codec's bytes can be",
        "leave codecs out and choose SecureAggregation(bits=..., norm=...)",
    ),
    Clash(
        lambda t: f"cohort={t.rounds.cohort}" if t.rounds.cohort < FEWEST_CLIENTS else None,
        _HIDES_NOBODY,
        f"choose a cohort of at least {FEWEST_CLIENTS}",
    ),
    Clash(
        lambda t: f"min_updates={t.rounds.min_updates}" if t.rounds.min_updates < FEWEST_CLIENTS else None,
        _HIDES_NOBODY,
        f"choose min_updates of at least {FEWEST_CLIENTS}",
    ),
    Clash(
        lambda t: (
            f"evaluation_cohort={t.rounds.evaluators()}"
            if t.rounds.evaluate_every and t.rounds.evaluators() < FEWEST_CLIENTS
            else None
        ),
        _HIDES_NOBODY,
        f"choose an evaluation_cohort of at least {FEWEST_CLIENTS}, or evaluate_every=0",
    ),
    Clash(
        _without_parameters,
        "no number of neighbours is enough for so many corrupt and dropped clients",
        "lower corrupt or dropout, or raise the cohort",
    ),
    Clash(
        _without_range,
        "what it sends besides the change has no public bound, so a ring could overflow",
        "choose a method that sends the change only, such as FedAvg or FedProx",
    ),
    Clash(
        _keeps_state,
        "it keeps state on devices, and state that one crafted version leaves makes a device's next update differ in "
        "ways that no norm bounds, so that a later sum may be that of one device",
        "choose FedAvg (with server_adam, say), FedProx or another method that keeps nothing on devices, or "
        "SecureAggregation(mode='semi_honest') where the coordinator is trusted to follow the protocol",
    ),
    Clash(_weights, "their sum does not fit a ring of 32 bits", "lower weight_cap, the cohort or the bits"),
    Clash(_too_wide, "their sum does not fit a ring of 32 bits exactly", "lower the cohort"),
)
"""With secure aggregation."""


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
        _buffers,
        "what is released is the sum of one round's devices, each once",
        _IN_ROUNDS,
    ),
    Clash(
        _reads_losses,
        "it reads the loss of single clients, which is released without noise",
        _SELECT_BLINDLY,
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

LOCAL: tuple[Clash, ...] = (
    Clash(
        _uneven_weights,
        "a weight by examples would reveal how many rows a device has",
        _COUNT_ALIKE,
    ),
    Clash(
        _devices_measure,
        "what devices measure would leave them without noise",
        _MEASURE_CENTRALLY,
    ),
    Clash(
        _reads_losses,
        "it reads the loss of single clients, which would leave them without noise",
        _SELECT_BLINDLY,
    ),
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
        lambda t: "no number of rows" if _example_level(t).rows is None else None,
        "what a step costs depends on how likely a row is to be in its batch, and that must be public",
        "give ExampleLevel(rows=...), how many rows a device has at least",
    ),
    Clash(
        _uneven_weights,
        "a weight by examples would reveal how many rows a device has",
        _COUNT_ALIKE,
    ),
    Clash(
        _devices_measure,
        "what devices measure on their rows would leave them without noise",
        _MEASURE_CENTRALLY,
    ),
    Clash(
        _reads_losses,
        "it reads the loss of single clients, which would leave them without noise",
        _SELECT_BLINDLY,
    ),
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


def secure_clashes(terms: Terms) -> Rules:
    """What secure aggregation excludes, as rules: (holds, what is said)."""
    default = terms.secure_by_default
    why = f"secure aggregation (the default from a cohort of {FROM_COHORT})" if default else "secure aggregation"
    return _rules(SECURE, terms, why, ", or set secure_aggregation=False") if terms.secure else ()


def privacy_clashes(terms: Terms) -> Rules:
    """What the privacy asked for excludes, as rules: (holds, what is said)."""
    asked = terms.privacy
    if asked is None:
        return ()
    match asked:
        case UserLevel():
            return _rules(USER, terms, "UserLevel privacy", "")
        case ExampleLevel():
            return _rules(EXAMPLE, terms, "ExampleLevel privacy", "")
        case LocalLevel():
            return _rules(LOCAL, terms, "LocalLevel privacy", "")


def _rules(table: tuple[Clash, ...], terms: Terms, other: str, way_out: str) -> Rules:
    found: list[tuple[bool, str]] = []
    for clash in table:
        thing = clash.holds(terms)
        said = f"{thing} is incompatible with {other}: {clash.because}; {clash.instead}{way_out}"
        found.append((thing is None, said))
    return tuple(found)
