"""What private set intersection costs: two parties, each a process of its own, from their first words to common rows.

    python benchmarks/psi.py [--json] [--sizes 10000 100000] [--common 0.5] [--hashes 20000]

Each party has `size` ids, of which `common` are the other's too; they speak through a pipe, with all that an alignment
reckons and without a coordinator. A figure is the time from the first words to the last row at both, beside X25519
alone: so many bare multiplications as both parties make, by both processes at once, in the same run. For a million ids:
`--sizes 1000000`.

processor_s: of both parties together, which a busy machine stretches less. blind_s, mix_s: of the slower party, its own
ids and the partner's points. bytes_an_id: what one party sends, for each of its ids. memory_an_id: by how much the
highest resident memory of a party grew over what it had with its ids alone, for each of its ids; it has a budget of its
own.

hash: microseconds to hash an id to the curve, with each arithmetic that is installed, beside one X25519.

Every measurement prints its lines (see lines.py).
"""

import argparse
import os
import resource
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import Queue
from threading import Thread
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from lines import Line, Peer, at_most, show

from coterie.privacy.psi.blinding import PsiKey, mix
from coterie.privacy.psi.exchange import OwnPoints, intersect, meet
from coterie.privacy.psi.field import ARITHMETICS
from coterie.privacy.psi.hashing import hash_to_curve
from coterie.privacy.psi.messages import PsiHello, PsiMessage, PsiTerms, read_psi_message

BUDGETS: Final = {100_000: at_most(9.0), 1_000_000: at_most(100.0)}
MEMORY_BUDGET: Final = at_most(400.0)
HASH_BUDGET: Final = at_most(0.3, "ratio")
BATCH: Final = 1000
TERMS: Final = PsiTerms(columns=1, rules=("nfc",), result="rows")


class PipeHost:
    """Messages over a pipe, which a thread empties, so that both ends may write at once."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._come: Queue[bytes] = Queue()
        self.bytes = 0
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._come.put(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return

    def send(self, message: PsiMessage) -> None:
        """To the other party."""
        data = message.to_bytes()
        self.bytes += len(data)
        self._pipe.send_bytes(data)

    def receive(self, use: Callable[[PsiMessage], bytes]) -> PsiMessage:
        """From the other party."""
        message = read_psi_message(self._come.get())
        return PsiMessage(message.head, use(message))


def main() -> None:
    """Run what was asked for and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--common", type=float, default=0.5, help="the share of ids that both have")
    parser.add_argument("--hashes", type=int, default=20_000, help="ids to hash with each arithmetic; 0: none")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    options = parser.parse_args()
    for size in options.sizes:
        for line in intersections(size, options.common):
            show(line, as_json=options.json)
    for line in hashes(options.hashes):
        show(line, as_json=options.json)


def intersections(size: int, share: float) -> Iterator[Line]:
    """Two parties of so many ids."""
    context = get_context("spawn")
    wires, ends = context.Pipe(), [context.Pipe() for _ in range(2)]
    shift = size - round(size * share)
    processes = [
        context.Process(target=party, args=("ab"[number], shift * number, size, wires[number], ends[number][1]))
        for number in range(2)
    ]
    for process in processes:
        process.start()
    tell: list[Connection] = [end[0] for end in ends]

    def in_turn(word: str) -> list[Any]:
        for end in tell:
            end.send(word)
        return [end.recv() for end in tell]

    [end.recv() for end in tell]  # both are there, with their ids
    alone_s = max(in_turn("multiply"))
    start = time.perf_counter()
    told = in_turn("intersect")
    seconds = time.perf_counter() - start
    for process in processes:
        process.join()
    right = all(each["common"] == size - shift for each in told)
    details = {
        "processor_s": round(sum(each["processor_s"] for each in told), 3),
        "blind_s": round(max(each["blind_s"] for each in told), 3),
        "mix_s": round(max(each["mix_s"] for each in told), 3),
        "bytes_an_id": round(max(each["bytes"] for each in told) / size, 1),
        "common": told[0]["common"],
        "right": right,
        "arithmetic": ARITHMETICS[0].name,
        "cores": os.cpu_count(),
    }
    budget = BUDGETS.get(size)
    yield Line(f"psi_{size}", round(seconds, 3), "s", Peer("X25519 alone", round(alone_s, 3)), budget, details)
    grown = max(each["grown"] for each in told) / size
    # Of few ids, pages and pools are most.
    yield Line(f"memory_an_id_{size}", round(grown, 1), "bytes", None, MEMORY_BUDGET if size >= 100_000 else None)


def party(role: str, first: int, size: int, wire: Connection, orders: Connection) -> None:
    """One party, which does what it is told and says what it took."""
    ids = [f"person {number}".encode() for number in range(first, first + size)]
    orders.send(None)
    orders.recv()
    orders.send(bare(BATCH) * 2 * size / BATCH)
    orders.recv()
    before, spent, processor = peak(), {"blind_s": 0.0, "mix_s": 0.0}, time.process_time()

    def mixed(key: PsiKey, job: bytes, points: bytes) -> bytes:
        start = time.perf_counter()
        tags = mix(key, job, points)
        spent["mix_s"] += time.perf_counter() - start
        return tags

    host = PipeHost(wire)
    state = meet(PsiHello(role=role, terms=TERMS, ids=size, minimum=1, fresh=os.urandom(16)), host)
    key, start = PsiKey.generate(), time.perf_counter()
    own = OwnPoints.blinded(key, ids)
    spent["blind_s"] = time.perf_counter() - start
    found = intersect(state, key, own, host, mixed)
    spent["processor_s"] = time.process_time() - processor
    orders.send({**spent, "common": found.count, "bytes": host.bytes, "grown": peak() - before})


def peak() -> int:
    """The highest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bare(count: int) -> float:
    """Seconds of so many multiplications and nothing else."""
    exchange = X25519PrivateKey.generate().exchange
    points = [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(count)]
    start = time.perf_counter()
    for point in points:
        exchange(X25519PublicKey.from_public_bytes(point))
    return time.perf_counter() - start


def hashes(count: int) -> Iterator[Line]:
    """What an id takes with each arithmetic."""
    if not count:
        return
    ids = [f"person {number}".encode() for number in range(count)]
    for arithmetic in ARITHMETICS:
        exchange_us = 1e6 * bare(BATCH) / BATCH
        start = time.perf_counter()
        hash_to_curve(ids, arithmetic)
        taken_us = 1e6 * (time.perf_counter() - start) / count
        budget = HASH_BUDGET if arithmetic.name == "gmpy2" else None
        peer = Peer("X25519", round(exchange_us, 2))
        yield Line(f"hash_{arithmetic.name}", round(taken_us, 2), "us an id", peer, budget)


if __name__ == "__main__":
    main()
