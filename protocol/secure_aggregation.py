"""How secure aggregation runs, as one value of an experiment."""

from typing import Annotated

from pydantic import Field

from coterie.protocol.by_hand import ByHand
from coterie.protocol.secagg import SecureMode

FEWEST_GRID_BITS, MOST_GRID_BITS = 2, 16
MOST_GROUPS = 1000

MinorityShare = Annotated[float, Field(strict=True, ge=0, le=0.5, allow_inf_nan=False)]


class SecureAggregation(ByHand):
    """Only sums over clients are ever seen.

    norm: public bound of the Euclidean norm of a client's change of the weights; a longer one is shortened by the
        client (the round's record says how many were).
    bits: of each number before it is added, 2 to 16; as many as the ring holds when None.
    mode: ``semi_honest``, against a coordinator that follows the protocol and is curious; ``consistent``, also against
        one that lies about who takes part; None for ``consistent`` where devices share the noise of differential
        privacy, ``semi_honest`` elsewhere.
    corrupt: the share of clients that may work together with the coordinator.
    dropout: the share that may vanish once it has begun; both in 0 … 0.5. A round policy that says no min_updates gets
        the cohort less that share.
    groups: None for one sum of all; else clients are put into so many random groups, each with a sum of its own, and
        the experiment's reducer works on the groups' means: a robust rule beside secrecy, which hides a client among
        the others of its group only.
    phase_s: how long each phase of an attempt waits, in seconds.
    Raises errors.InputError (``message_invalid``) naming the field.
    """

    norm: Annotated[float, Field(strict=True, ge=1e-12, le=1e12, allow_inf_nan=False)] = 10.0
    bits: Annotated[int, Field(strict=True, ge=FEWEST_GRID_BITS, le=MOST_GRID_BITS)] | None = None
    mode: SecureMode | None = None
    corrupt: MinorityShare = 0.1
    dropout: MinorityShare = 0.1
    groups: Annotated[int, Field(strict=True, ge=2, le=MOST_GROUPS)] | None = None
    phase_s: Annotated[float, Field(strict=True, ge=0.1, le=7 * 24 * 3600.0, allow_inf_nan=False)] = 60.0
