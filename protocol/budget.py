"""The control plane's messages about a population's privacy budget and its ledger."""

from typing import Any

from coterie.protocol.wire import (
    ExperimentId,
    NotNegative,
    Positive,
    Proportion,
    Response,
    Sha256,
    Signature,
    Slug,
    Title,
    Whole,
)


class BudgetLimit(Response):
    """A limit of a ledger.

    scope: an experiment's id, ``each experiment`` or ``365 days``.
    """

    scope: Title
    epsilon: NotNegative
    delta: Proportion


class ExperimentBudget(Response):
    """What an experiment has lost and may still lose.

    epsilon_spent: of the rounds whose cost is paid.
    epsilon: with those that are reserved; both at delta, None where no finite ε holds.
    limit: the most that it may come to.
    """

    experiment: ExperimentId
    rounds_spent: Whole
    rounds_reserved: Whole
    rounds_refunded: Whole
    epsilon_spent: NotNegative | None
    epsilon: NotNegative | None
    delta: Proportion
    limit: NotNegative | None = None


class BudgetView(Response):
    """A population's privacy budget as it stands.

    entries, digest: the end of its ledger.
    epsilon_year_spent, epsilon_year: what a unit that took part in everything may have lost in the last 365 days, paid
        and with what is reserved, at delta; None where no finite ε holds.
    """

    population: Slug
    entries: Whole
    digest: Sha256
    limits: tuple[BudgetLimit, ...] = ()
    delta: Proportion
    epsilon_year_spent: NotNegative | None
    epsilon_year: NotNegative | None
    experiments: tuple[ExperimentBudget, ...] = ()


class LedgerEntry(Response):
    """One entry of a population's ledger, as `coterie.privacy.ledger.chain.Entry` has it.

    at: milliseconds since 1970, which the digest covers.
    """

    population: Slug
    sequence: Positive
    at: Whole
    event: dict[str, Any]
    previous: Sha256
    digest: Sha256
    signature: Signature
