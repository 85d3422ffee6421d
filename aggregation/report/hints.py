"""What a run says about its own settings, in a sentence for whoever set them."""

from coterie.aggregation.report.run import ReportedRun

MANY = 0.1
"""The share of shortened clients from which on a public norm is worth another look."""
RAISE_NORM = "raise SecureAggregation(norm=...)"
GIVE_ROWS = "Experiment(evaluation=...)"


def clipped(history: ReportedRun) -> float | None:
    """The share of clients that secret sums shortened to the public norm, on average over the rounds that tell one;
    None where none does.
    """
    shares = [record.clipped for record in history if record.clipped is not None]
    return sum(shares) / len(shares) if shares else None


def hints(history: ReportedRun) -> tuple[str, ...]:
    """A sentence each: of training that diverged; of a public norm that shortens many clients; of versions under
    differential privacy that nobody measured, since clients may not. Empty where there is nothing to say.
    """
    found: list[str] = []
    if (first := next((record for record in history if record.diverged), None)) is not None:
        found.append(
            f"Training diverged in round {first.round}; lower the learning rate. It gave NaN or infinity "
            f"{first.diverged} times, which enter no model."
        )
    share = clipped(history)
    if share is not None and share >= MANY:
        found.append(
            f"Secure aggregation shortened {share:.0%} of the clients' updates to its public norm; where training is "
            f"slow, {RAISE_NORM}."
        )
    noised = [record for record in history.committed if record.epsilon is not None]
    if noised and not any(record.metrics for record in history):
        found.append(
            "Nobody measured these versions, since what clients measure would need noise as well: give the "
            f"coordinator public rows, {GIVE_ROWS}."
        )
    return tuple(found)
