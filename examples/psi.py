"""Which customers two shops share: private set intersection, and what each shop sees while it is found out.

    python examples/psi.py [--count]

Two shops in one process speak through queues, as in a session they speak through a coordinator
(`coterie party align`). Each knows its own customers alone. Printed is what passes between them, what both know in the
end, and that a hash of a guessed name is in none of the messages. ``--count`` finds out how many they share, and not
who.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import urandom
from queue import Queue

from coterie.client_sdk.party.alignment_ids import read_ids
from coterie.privacy.psi.blinding import PsiKey
from coterie.privacy.psi.exchange import OwnPoints, PsiOutcome, intersect, meet
from coterie.privacy.psi.messages import PsiHello, PsiMessage, PsiTerms, read_psi_message

TOWN = (
    "Ada",
    "Ben",
    "Cleo",
    "Dora",
    "Emil",
    "Fay",
    "Gus",
    "Hal",
    "Ida",
    "Jon",
    "Kai",
    "Lea",
    "Max",
    "Nia",
    "Oda",
    "Per",
)


class Wire:
    """One end of a wire, which remembers what was sent on it."""

    def __init__(self, out: "Queue[bytes]", coming: "Queue[bytes]") -> None:
        self.out, self.coming, self.sent = out, coming, list[PsiMessage]()

    def send(self, message: PsiMessage) -> None:
        """To the other end."""
        self.sent.append(message)
        self.out.put(message.to_bytes())

    def receive(self, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        """From the other end; ``use`` checks it, and says what to keep of it."""
        message = read_psi_message(self.coming.get(timeout=60))
        return PsiMessage(message.head, use(message))


def shop(name: str, customers: list[str], wire: Wire, *, count: bool) -> PsiOutcome:
    """All that one shop does."""
    ids = read_ids(customers).ids
    terms = PsiTerms(columns=1, rules=("nfc", "strip", "casefold"), result="count" if count else "rows", told="")
    hello = PsiHello(role=name, terms=terms, ids=len(ids), minimum=3, fresh=urandom(16))
    state = meet(hello, wire)
    key = PsiKey.generate()  # for this once
    return intersect(state, key, OwnPoints.blinded(key, ids), wire)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Which customers two shops share.")
    parser.add_argument("--count", action="store_true")
    count = parser.parse_args().count
    baker, florist = [*TOWN[:12]], [f" {name.upper()}" for name in reversed(TOWN[7:])]

    to_baker: Queue[bytes] = Queue()
    to_florist: Queue[bytes] = Queue()
    wires = Wire(to_florist, to_baker), Wire(to_baker, to_florist)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(shop, "baker", baker, wires[0], count=count)
        other = pool.submit(shop, "florist", florist, wires[1], count=count)
        first, second = one.result(), other.result()

    for name, wire in zip(("baker", "florist"), wires, strict=True):
        sizes: Counter[str] = Counter()
        for message in wire.sent:
            sizes[message.head.kind.name.lower()] += len(message.body)
        print(f"The {name} sent: {', '.join(f'{kind} {size} bytes' for kind, size in sizes.items())}")
    print(f"The baker has {len(baker)} customers, the florist {len(florist)}; {first.count} are common.")
    if first.rows is not None and second.rows is not None:
        pairs = [(baker[i], florist[j].strip()) for i, j in zip(first.rows, second.rows, strict=True)]
        print("In one order at both:", ", ".join(f"{mine} = {theirs}" for mine, theirs in pairs))
    seen = b"".join(message.body for wire in wires for message in wire.sent)
    guesses = [hashlib.sha256(name.casefold().encode()).digest() for name in TOWN]
    print(f"Hashes of guessed names in what passed: {sum(guess in seen for guess in guesses)}")


if __name__ == "__main__":
    main()
