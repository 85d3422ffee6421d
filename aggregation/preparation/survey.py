"""A survey: what a draft leaves open, asked of the clients by sums, and the schema that is made of the answer.

    survey = Survey(Draft((Number("age"), Category("city")), label=Category("ill")))
    experiment = survey.ask(clients=20)              # simulate(experiment, …) or submit(experiment, …)
    prepared = survey.answer(weights)                # of the version that the experiment ends with
    prepared.schema                                  # a finer reading of the draft's declared columns

A survey is an ordinary experiment of three rounds, or four where texts are to be found; `rule` says what is certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.checks import whole
from coterie.aggregation.analytics.noise import NOISE, NoisyPrivacy, check_ring, checked, deviation
from coterie.aggregation.analytics.rule import HIGH, LARGEST_EXACT, LOW, SETTINGS, largest_of, shapes_of
from coterie.aggregation.preparation.draft import Draft
from coterie.aggregation.preparation.hashing import DIGITS, digits_of
from coterie.aggregation.preparation.prepared import Prepared, read
from coterie.aggregation.preparation.rule import MOST_FOUND, NAME, UNUSED, SurveyRule, survey_rule
from coterie.protocol.secure_aggregation import SecureAggregation

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment

MOST_SEED = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """What a survey's rule is made with.

    largest, noise, clipped: of `survey_rule`.
    """

    largest: int = LARGEST_EXACT
    noise: float = 0.0
    clipped: bool = False


@dataclass(frozen=True)
class Survey:
    """The question for what a draft leaves open.

    draft: what is known.
    share: of all rows, that a text must make up to be found.
    fewest: how many rows it must have besides, so that what stands in a few rows is not spelled out.
    most: how many texts of a column can be found.
    tail: the share of values at either end of a number that its statistics cut to the end of its range.
    seed: of the hash of texts; choose another where two texts had one hash.
    Raises errors.ExperimentError (``query_invalid``) for numbers that are not possible.
    """

    draft: Draft
    share: float = 0.001
    most: int = 64
    tail: float = 0.001
    seed: int = 0
    fewest: int = 10

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.draft), Draft):
            raise errors.ExperimentError(
                f"A survey asks a Draft, not a {type(self.draft).__name__}.",
                hint="Write Survey(Draft((Number(...), Category(...)), label=Category(...))).",
                code="query_invalid",
            )
        whole(NAME, "most", self.most, least=1, most=MOST_FOUND)
        whole(NAME, "seed", self.seed, least=0, most=MOST_SEED)
        listed = max((len(part.among or ()) for part in self.draft.categories), default=0)
        object.__setattr__(self, "most", max(self.most, listed))
        self.rule()

    @property
    def rounds(self) -> int:
        """How many rounds it takes."""
        return self.rule().rounds

    def rule(self, terms: _Terms = _Terms()) -> SurveyRule:
        """The sums, by which a server knows the survey. It knows no name of a column and no declared text."""
        categories = self.draft.categories
        return survey_rule(
            numbers=sum(part.elements for part in self.draft.numbers),
            texts=len(categories),
            declared=sum(part.among is not None for part in categories),
            most=self.most,
            share=self.share,
            tail=self.tail,
            fewest=self.fewest,
            noise=terms.noise,
            largest=terms.largest,
            clipped=float(terms.clipped),
            slots=self._slots(),
        )

    def ask(
        self,
        *,
        clients: int,
        name: str = "survey",
        seed: int = 0,
        secure_aggregation: SecureAggregation | bool | None = None,
        privacy: NoisyPrivacy | None = None,
        **policy: Any,
    ) -> Experiment:
        """The experiment that asks ``clients`` clients in each round; `simulate` and `submit` take it.

        secure_aggregation: as in `Experiment`; the sums stay exact in it.
        privacy: hides every client as a whole; its ``clip`` is in rows: a client of more rows counts like one of about
            so many. What sums cannot have is refused: see `coterie.aggregation.analytics.noise.checked`.
        policy: further fields of the `RoundPolicy`, such as ``min_updates`` and ``deadline_s``.
        Raises errors.ExperimentError (``query_invalid``), and as `Experiment` does.
        """
        from coterie.aggregation.preparation.asking import experiment

        def experiment_of(terms: _Terms) -> Experiment:
            return experiment(
                self.draft,
                self.rule(terms),
                clients=clients,
                name=name,
                seed=seed,
                hash_seed=self.seed,
                secure_aggregation=secure_aggregation,
                privacy=privacy,
                policy=policy,
            )

        if privacy is None:
            return experiment_of(_Terms(largest=largest_of(clients)))
        checked("A survey", privacy)
        # How much noise there is, depends on how the experiment's rounds run, and it knows that itself.
        noised = _Terms(noise=1.0, clipped=True)
        provisional, rule = experiment_of(noised), self.rule(noised)
        # A row adds one to the number of rows and to a bin of each number, which seldom share a block.
        check_ring("A survey", provisional, shapes_of(rule), rule.size, peak=(1 + rule.numbers) ** -0.5)
        return experiment_of(replace(noised, noise=deviation(provisional, shapes_of(rule))))

    def answer(self, version: Mapping[str, npt.NDArray[Any]]) -> Prepared:
        """What a finished survey's model version says.

        Raises errors.InputError (``query_mismatch``) for a version of anything else; errors.ExperimentError
        (``survey_unanswered``) naming a column of which too little is known.
        """
        settings = version.get(SETTINGS + NOISE, np.zeros(1))
        noise = float(settings[0]) if settings.shape == (1,) and np.isfinite(settings).all() else 0.0
        rule = self.rule(_Terms(noise=abs(noise)))
        if {name: value.shape for name, value in version.items()} != shapes_of(rule):
            raise errors.InputError(
                f"This version holds {', '.join(sorted(version))[:200] or 'nothing'}, which is not the result of "
                f"this survey's {rule.size} sums.",
                hint="Read the newest version of the experiment that was made from this very survey.",
                code="query_mismatch",
            )
        total = version[HIGH].astype(np.float64) + version[LOW]
        settings = {name: version[SETTINGS + name] for name in rule.settings}
        return read(self.draft, rule, rule.split(total), settings, share=self.share, fewest=self.fewest, seed=self.seed)

    def _slots(self) -> npt.NDArray[np.float32] | None:
        categories = self.draft.categories
        if not categories:
            return None
        slots = np.full((len(categories), self.most, DIGITS), UNUSED, np.float32)
        for column, category in enumerate(categories):
            if category.among is not None:
                slots[column, : len(category.among)] = digits_of(category.among, self.seed)
        return slots
