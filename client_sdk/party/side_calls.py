"""Calls whose work is a program of `coterie.aggregation.vertical.exchange`: it is run over the session's messages, its
secrets are drawn once, and its state is kept after each part.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from coterie.aggregation.vertical.exchange import HEADER_BYTES, NOTHING, Side, Tell, read_message_of, write_message
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.role_calls import RoleCalls
from coterie.errors import ConfigurationError
from coterie.protocol.arrays import ArraysByName

Result = TypeVar("Result")
SECRETS: Final = ("seed", "private_p", "private_q", "private_base")
"""Arrays that `SideCalls.secrets` may give."""
_SEED_BYTES: Final = 32
_DRAWN: Final = 1


class SideCalls:
    """What learners of one role need beside `RoleCalls`.

    calls: of the role.
    role: its name, for messages.
    patience_s: how long to wait for a partner's message; for as long as it takes when not given.
    """

    def __init__(self, calls: RoleCalls, role: str, patience_s: float | None) -> None:
        self._calls, self._role, self._patience_s = calls, role, patience_s

    def secrets(self, call: LearnerCall, draw: Callable[[], ArraysByName]) -> tuple[LearnerCall, ArraysByName]:
        """The seed of a training and what ``draw`` makes: kept before anything of it leaves, or as they were kept."""
        if call.step < _DRAWN:
            seed = np.frombuffer(os.urandom(_SEED_BYTES), np.uint8)
            call = self.checkpoint(call, {"seed": seed, **draw()})
        return call, {name: value for name, value in self._calls.tensors.items() if name in SECRETS}

    def checkpoint(self, call: LearnerCall, arrays: ArraysByName) -> LearnerCall:
        """Keep the state after a part of a call."""
        call = replace(call, step=call.step + 1)
        self._calls.keep(call, arrays)
        self._calls.log.faults.reach("checkpoint_kept")
        return call

    def run(self, call: LearnerCall, side: Side[Result]) -> Result:
        """Send what a program sends, and give it what comes."""
        log = self._calls.log
        try:
            step = next(side)
            while True:
                if isinstance(step, Tell):
                    log.send(step.role, write_message(step, call.number), patience_s=self._patience_s)
                    step = side.send(NOTHING)
                else:
                    limit = step.limit + HEADER_BYTES
                    data = log.receive(step.role, limit=limit, patience_s=self._patience_s)
                    step = side.send(read_message_of(data, step, call.number))
        except StopIteration as end:
            return end.value

    def require_trained(self, array: str) -> None:
        """Refuse where there is no finished training. array: that a training keeps when it has begun to learn.

        Raises ConfigurationError (``not_trained``).
        """
        # A training that was begun and not finished has taken the place of the one before.
        if not self._calls.trained or array not in self._calls.tensors:
            raise ConfigurationError(
                f"The part of role {self._role!r} in {self._calls.folder} is not trained.",
                hint="Call train first, in every role.",
                code="not_trained",
            )
