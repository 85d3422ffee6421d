"""Cyclic weight transfer: the model goes from client to client, each trains it and passes it on.

Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer: "Distributed deep learning networks among
institutions for medical imaging" (2018). A round is one visit: cohort 1, clients in turn. Nothing is averaged, so the
visit's weights are the next version's.
"""

from __future__ import annotations

from coterie.aggregation.horizontal.algorithm import Algorithm, MethodTerms, Rules
from coterie.aggregation.horizontal.needs import one_version, plain_server


def _needs(terms: MethodTerms) -> Rules:
    rounds = terms.rounds
    return (
        (rounds.cohort == 1, f"Cyclic visits one client a round; set cohort=1, not {rounds.cohort}"),
        (rounds.tasks() == 1, "Cyclic offers a round to one client; leave over_selection and dropout out"),
        (
            rounds.selection == "cyclic",
            f'Cyclic takes clients in turn; set selection="cyclic", not {rounds.selection!r}',
        ),
        *one_version(terms, "Cyclic"),
        *plain_server(terms, "Cyclic", "the visited client's weights are the next version's"),
    )


def Cyclic() -> Algorithm:
    """Cyclic weight transfer, with ``RoundPolicy(cohort=1, selection="cyclic")``."""
    return Algorithm(name="cyclic", needs=_needs)
