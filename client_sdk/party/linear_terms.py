"""What a linear model tells, for the session's report."""

from typing import Final

from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.protocol.disclosures import Disclosure, DisclosureKind

_TOLD: Final[dict[str, tuple[tuple[DisclosureKind, str, bool, int], ...]]] = {
    "train": (
        ("values", "rows that are trained on", True, 1),
        ("values", "curvature and number of columns", True, 0),
        ("ciphertexts", "residuals", True, 1),
        ("values", "number of columns", False, 0),
        ("sums", "slopes of the label owner's columns", False, 0),
        ("sums", "slopes of the feature owner's columns", True, 0),
        ("values", "scores", False, 1),
    ),
    "predict": (("values", "scores", False, 1),),
}
"""By task: what is told, which, whether the label owner tells it, and how many numbers of a row: 0 where they are not
of single rows.
"""
_EACH_EPOCH: Final = ("ciphertexts", "sums")


def told_by_linear(terms: LinearTerms, role: str, task: str, step: str, rows: int | None) -> list[Disclosure]:
    """By a call, to and by a role: at most, about every row.

    task: "train" or "predict". step: what reports call the call. rows: None where it is not known yet.
    """
    owner, partner = terms.parties
    return [
        Disclosure(
            step=step,
            sender=owner if by_owner else partner,
            recipient=partner if by_owner else owner,
            kind=kind,
            key=key,
            numbers=numbers,
            rows=rows,
            times=terms.epochs if kind in _EACH_EPOCH else 1,
            plan=terms.digest,
        )
        for kind, key, by_owner, numbers in _TOLD[task]
        if role in terms.parties
    ]
