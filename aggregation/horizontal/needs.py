"""What methods require of the rest of an experiment, as rules for `Algorithm.needs`."""

from __future__ import annotations

import math

from coterie import errors
from coterie.aggregation.horizontal.algorithm import MethodTerms, Rules
from coterie.aggregation.number import is_number

BUFFERED = "buffered"


def plain_descent(terms: MethodTerms, method: str, why: str) -> Rules:
    """The clients' optimizer is gradient descent without momentum."""
    rule = terms.optimizer
    holds = rule is None or (rule.name == "sgd" and "momentum" not in rule.parameters)
    found = "" if rule is None or rule.name == "sgd" else f", not {rule.name!r}"
    return ((holds, f"{method} needs optim.sgd(lr) without momentum on the clients{found}: {why}"),)


def plain_server(terms: MethodTerms, method: str, why: str) -> Rules:
    """The server optimizer adds the step as it is."""
    rule = terms.server_optimizer
    holds = rule.name == "sgd" and rule.parameters == {"lr": 1.0, "momentum": 0.0}
    return ((holds, f"{method} needs server_sgd() as it is: {why}"),)


def moving(terms: MethodTerms, method: str, why: str) -> Rules:
    """The clients' learning rate is positive in every round."""
    schedule = terms.rounds.hyper_schedule or {}
    rates = (*schedule.get("lr", ()), {"lr": 1.0, **terms.hyper, **terms.overrides}["lr"])
    return ((all(rate > 0 for rate in rates), f"{method} needs a learning rate above 0 in every round: {why}"),)


def check_number(
    method: str, name: str, value: float, *, least: float, below: float = math.inf, whole: bool = False
) -> float:
    """The number as a float, if least ≤ value < below, and whole where it must be.

    Raises errors.ExperimentError (``algorithm_parameter``) naming it.
    """
    if not is_number(value) or not least <= value < below or (whole and value != int(value)):
        kind = "a whole number" if whole else "a finite number"
        bound = "" if below == math.inf else f" and below {below:g}"
        raise errors.ExperimentError(
            f"{method} needs {name} to be {kind} of at least {least:g}{bound}, not {value!r}.",
            code="algorithm_parameter",
        )
    return float(value)


def enough_clients(terms: MethodTerms, method: str, clients: float) -> Rules:
    """A round needs no more clients than there are said to be in all."""
    least = terms.rounds.min_updates
    return (
        (
            least <= clients,
            f"{method}(clients={clients:g}) says how many clients there are in all, and every round needs {least}; "
            f"give it their number, {least} or more, or lower cohort and min_updates",
        ),
    )


def one_version(terms: MethodTerms, method: str) -> Rules:
    """All updates of a round were trained on the same version."""
    return ((not terms.rounds.buffered, f"{method} needs updates of one version; leave out mode={BUFFERED!r}"),)
