"""How many real devices an attempt has, by the word of issuers that the client's owner trusts.

Secure aggregation and shared noise hide a client among the others of its roster. Who they are the coordinator says, and
it can bring its own; then they hide nothing. So a client may ask for so many distinct subjects endorsed by issuers of
its owner's choice, in the roster and again among the survivors (`coterie.protocol.endorsements`).

That many real ones are not enough where more others stand beside them: whoever holds the shares of a threshold of
neighbours opens one client's vector without any sum. So whoever is not endorsed counts as the coordinator's, and there
are no more of them than the parameters withstand (`coterie.privacy.secagg.parameters`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie import errors
from coterie.privacy.secagg.parameters import Parameters, share_of
from coterie.protocol.conversion import Sorted
from coterie.protocol.secagg import RosterEntry


@dataclass(frozen=True)
class EndorsementRule:
    """What a client asks for: at least so many subjects, its own among them, endorsed by one of these issuers."""

    issuers: Sorted[str] = frozenset()
    least: int = 0


NO_ENDORSEMENT = EndorsementRule()


def subjects(entries: Iterable[RosterEntry], rule: EndorsementRule) -> dict[int, str]:
    """The subject behind each place that one of the issuers endorses."""
    return {
        entry.position: entry.endorsement.subject
        for entry in entries
        if entry.endorsement is not None and entry.endorsement.is_for(entry.identity, rule.issuers)
    }


def check_roster(endorsed: Mapping[int, str], settled: Parameters, rule: EndorsementRule) -> None:
    """Raise errors.SecureAggregationRefused (``secagg_identities``) where too few distinct subjects are in the roster,
    or so many clients beside them that together they may hold a threshold of shares.

    endorsed: the subjects by place.
    settled: the parameters of the roster.
    """
    if not rule.least:
        return
    check(endorsed, endorsed, rule, "roster")
    strangers, most = settled.clients - len(set(endorsed.values())), share_of(settled.corrupt, settled.clients)
    if strangers > most:
        raise errors.SecureAggregationRefused(
            f"Of the {settled.clients} clients in the roster {strangers} are not endorsed for a subject of their own; "
            f"the task withstands at most {most} that side with the coordinator (corrupt {settled.corrupt:g}).",
            hint="They may be the coordinator's own. Let the population take endorsed devices only "
            "(coterie policy --endorser KEY), or the researcher choose a larger corrupt.",
            code="secagg_identities",
        )


def check(endorsed: Mapping[int, str], places: Iterable[int], rule: EndorsementRule, where: str) -> None:
    """Raise errors.SecureAggregationRefused (``secagg_identities``) where too few distinct subjects are at these
    places.

    where: of which list, for the refusal.
    """
    count = len({endorsed[place] for place in places if place in endorsed})
    if count < rule.least:
        raise errors.SecureAggregationRefused(
            f"Only {count} clients in the {where} are endorsed for distinct subjects; this client requires at least "
            f"{rule.least}.",
            hint="The coordinator may have filled the cohort with devices of its own. Else let the issuer endorse more"
            " devices, or lower min_endorsed in the device's policy file.",
            code="secagg_identities",
        )
