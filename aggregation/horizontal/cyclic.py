"""Cyclic weight transfer: the model goes from client to client, each trains it and passes it on.

Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer: "Distributed deep learning networks among
institutions for medical imaging" (2018). A round is one visit: cohort 1, clients in turn. Nothing is averaged, so the
visit's weights are the next version's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import Algorithm, Rules
from coterie.aggregation.horizontal.needs import one_version, plain_server

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment


def _needs(experiment: Experiment) -> Rules:
    rounds = experiment.rounds
    return (
        (rounds.cohort == 1, f"Cyclic visits one client a round; set cohort=1, not {rounds.cohort}"),
        (rounds.tasks() == 1, "Cyclic offers a round to one client; leave over_selection and dropout out"),
        (
            rounds.selection == "cyclic",
            f'Cyclic takes clients in turn; set selection="cyclic", not {rounds.selection!r}',
        ),
        *one_version(experiment, "Cyclic"),
        *plain_server(experiment, "Cyclic", "the visited client's weights are the next version's"),
    )


def Cyclic() -> Algorithm:
    """Cyclic weight transfer, with ``RoundPolicy(cohort=1, selection="cyclic")``."""
    return Algorithm(name="cyclic", needs=_needs)
