"""What secure aggregation costs: whole attempts through the real client and coordinator machines, in one process.

    python benchmarks/secagg.py --clients 1000 --dim 100000 --drop 0.1 [--mode consistent] [--json] [--clock cpu]
        [--bits 16] [--processes 2] [--encode] [--lengths 1048576 1663370]
    python benchmarks/secagg.py --compare 10 50 100 --dim 1000 --drop 0.1 --json

Every client is the machine of `privacy.secagg.client`, with keys, signatures, sealed shares and masks of its own; the
coordinator is that of `privacy.secagg.server`. `drop` of the clients vanish after they dealt their shares, which costs
the coordinator most. The parameters count on a tenth of corrupt clients, and on a tenth of drop-outs or `drop`. Vectors
are uniform in the ring that `ring_sections` makes for sums of `bits`-bit numbers; rotated blocks make it a little
longer than `dim`.

client_ms: all that one client computes in an attempt, without training and encoding: the median over the survivors.
server_s: from the last client's answer to the sum: `open_s` (secrets from shares, each held to what was published),
`plan_s` (one key agreement for each mask of a dropped client), `remove_s` (the masks off the sum, on one core).
arithmetic_s: mask, pack, add and unmask, over all clients. messages_s: the coordinator's part of all other messages.
expansion: all bytes of one client, both ways, as JSON and with the masked vector's file, over those of `dim` numbers of
`bits` bits; `--lengths` gives it for other lengths too, since only the file depends on them. exact: the sum is that of
the survivors' vectors, bit for bit. processes_speedup: removals a second by `processes`, whose pool is there already,
beside those of one process, by the wall; processes_split: one process's processor time over that of the largest share,
which is what free cores would give. compare: for cohorts of these sizes, what one client and the coordinator compute,
the bytes of one client both ways and the seconds of the whole attempt (all clients one after another in this process,
without a network), `consistent` beside `semi_honest` in the same run; each the median of `--times`, the modes in turn.
aes_ns, exchange_us: the yardsticks of the run, AES-256-CTR alone for each four bytes, and one X25519 agreement, on the
same clock: a busy machine raises them as it raises the rest. What has a unit is a line of its own (see lines.py).
"""

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from lines import Budget, Line, Peer, at_least, at_most, show
from secagg_yardsticks import in_processes, yardsticks

from coterie.privacy.secagg import client, ring, server, unmask
from coterie.privacy.secagg.encoding import Binding, encode, vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader, encode_masked
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol.canonical import canonical_json
from coterie.protocol.secagg import Reveal, SecureMode, SecureTerms, Shares
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.signing import SigningKey
from coterie.randomness import words

Returned = TypeVar("Returned")
PLAN, MODEL, TASK = "aa" * 32, "bb" * 32, "task_" + "0" * 32
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
# The budgets of clients, numbers and drop-outs, in the mode `semi_honest`.
BUDGETS: dict[tuple[int, int, float], dict[str, Budget]] = {
    (1000, 100_000, 0.1): {
        "client_ms": at_most(15),
        "server_s": at_most(1.2),
        "processes_speedup": at_least(1.7, "ratio"),
    },
    (300, 100_000, 0.1): {"server_s": at_most(0.6)},
    (20, 1_000_000, 0.0): {"arithmetic_s": at_most(0.4)},
    (1000, 1_000_000, 0.1): {"processes_speedup": at_least(1.7, "ratio")},
}
UNITS = {
    "client_ms": "ms of a client",
    "server_s": "s of the coordinator",
    "arithmetic_s": "s of all",
    "expansion": "times the plain bytes",
    "encode_ms": "ms of a client",
}
COMPARED = {"client_ms": "ms", "coordinator_ms": "ms", "client_bytes": "bytes", "attempt_s": "s"}
PROCESSES = ("processes", "processes_split", "processes_exact", "removals", "removals_alone")
# Of 1024 clients and 16 bits in that mode, for each of `--lengths`.
EXPANSION = at_most(1.70)


@dataclass
class Party:
    """One client: its state, its keys, the seconds it computed and the bytes it sent and received."""

    index: int
    state: client.ClientState
    identity: SigningKey
    seconds: float = 0.0
    masking: float = 0.0
    sizes: Counter[str] = field(default_factory=Counter[str])


@dataclass
class Attempt:
    """One attempt of secure aggregation and its clocks. spent: part of the coordinator's work → seconds."""

    terms: SecureTerms
    clock: Callable[[], float]
    state: server.ServerState
    parties: list[Party]
    spent: dict[str, float] = field(default_factory=dict[str, float])

    def serve(self, part: str, work: Callable[[], Returned]) -> Returned:
        """Do a piece of the coordinator's work on the clock of its part."""
        start = self.clock()
        result = work()
        self.spent[part] = self.spent.get(part, 0.0) + self.clock() - start
        return result

    def feed(self, event: server.ServerEvent, part: str = "messages") -> None:
        """One event for the coordinator."""
        self.state = self.serve(part, lambda: server.step(self.state, event))

    def tell(self, party: Party, message: Any) -> Any:
        """One message for a client, and its answer."""
        party.sizes[type(message).__name__] += _size(message)
        start = self.clock()
        party.state, answer = client.step(party.state, message, identity=party.identity)
        party.seconds += self.clock() - start
        if answer is not None:
            party.sizes[type(answer).__name__] += _size(answer)
        return answer


def main() -> None:
    """Run one attempt and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=100_000)
    parser.add_argument("--drop", type=float, default=0.1, help="the share of clients that vanish")
    parser.add_argument("--mode", choices=("semi_honest", "consistent"), default="semi_honest")
    parser.add_argument("--bits", type=int, default=16, help="of one client's numbers")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="of all but the processes")
    parser.add_argument("--processes", type=int, default=2, help="to share the removal of masks; 1: do not measure it")
    parser.add_argument("--encode", action="store_true", help="also one client's rotation and rounding, as encode_ms")
    parser.add_argument("--lengths", type=int, nargs="*", default=[], help="of vectors whose expansion to give too")
    parser.add_argument("--compare", type=int, nargs="+", metavar="CLIENTS", help="both modes for these cohorts")
    parser.add_argument("--times", type=int, default=5, help="attempts of each mode and cohort to compare")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    options = parser.parse_args()
    clock = CLOCKS[options.clock]
    if options.compare:
        for clients in options.compare:
            for line in compare(clients, options.dim, options.drop, options.bits, clock, options.times):
                show(line, as_json=options.json)
        return
    figures = measure(options.clients, options.dim, options.drop, options.mode, options.bits, clock, options.processes)
    if options.encode:
        figures["encode_ms"] = round(1e3 * encoding_seconds(options.clients, options.dim, options.bits), 2)
    for line in lines_of(figures, options):
        show(line, as_json=options.json)


def lines_of(figures: dict[str, Any], options: argparse.Namespace) -> Iterator[Line]:
    """What an attempt found: first what has a budget in some case, then the bytes; the rest beside the first."""
    plain = options.mode == "semi_honest"
    budgets = BUDGETS.get((options.clients, options.dim, options.drop), {}) if plain else {}
    case = f"{options.clients} clients, {options.dim} numbers, {options.drop:g} dropped"
    if not plain:
        case += f", {options.mode}"
    rest = {name: value for name, value in figures.items() if name not in UNITS and name not in PROCESSES}
    for name, unit in UNITS.items():
        if name in figures:
            yield Line(f"{case}, {name}", figures[name], unit, None, budgets.get(name), rest)
            rest = {}
    if "processes" in figures:
        name, alone = "processes_speedup", Peer("one process", figures["removals_alone"])
        details = {each: figures[each] for each in ("processes", "processes_split", "processes_exact")}
        yield Line(f"{case}, {name}", figures["removals"], "removals a second", alone, budgets.get(name), details)
    for length in options.lengths:
        found = expansion(figures["message_bytes"], options.clients, length, options.bits)
        budget = EXPANSION if plain and options.clients == 1024 and options.bits == 16 else None
        yield Line(f"{case}, expansion of {length} numbers", found, UNITS["expansion"], budget=budget)


def measure(
    clients: int,
    dim: int,
    drop: float,
    mode: SecureMode,
    bits: int,
    clock: Callable[[], float],
    processes: int,
) -> dict[str, Any]:
    """The figures of one attempt."""
    attempt = _begin(clients, dim, drop, mode, bits, clock)
    spec = vector_spec(attempt.terms.sections)
    _deal(attempt)
    dropped = round(drop * clients)
    survivors, gone = attempt.parties[dropped:], attempt.parties[:dropped]
    total, expected = _mask(attempt, survivors, spec)
    reveals = _agree(attempt, survivors)
    for party, reveal in reveals[:-1]:
        attempt.feed(server.Revealed(_place(attempt, party), reveal))
    last, reveal = reveals[-1]
    attempt.feed(server.Revealed(_place(attempt, last), reveal), "open")
    masks = attempt.serve("plan", lambda: server.plan_masks(attempt.state))
    masked = total.copy()
    attempt.serve("remove", lambda: unmask.remove(total, masks))
    exact = bool(np.array_equal(ring.reduced(total, spec), expected))
    spent = attempt.spent
    start = clock()
    primitives = yardsticks(clock)
    yardsticks_s = clock() - start
    messages = statistics.median(sum(party.sizes.values()) for party in survivors)
    figures: dict[str, Any] = {
        "clients": clients,
        "dim": dim,
        "drop": drop,
        "mode": mode,
        "neighbours": attempt.state.parameters.neighbours,
        "threshold": attempt.state.parameters.threshold,
        "ring_bits": spec.segments[1].bits,
        "dropped": len(gone),
        "masks": len(masks),
        "client_ms": round(1e3 * statistics.median(party.seconds for party in survivors), 2),
        "server_s": round(spent["open"] + spent["plan"] + spent["remove"], 3),
        "open_s": round(spent["open"], 3),
        "plan_s": round(spent["plan"], 3),
        "remove_s": round(spent["remove"], 3),
        **primitives,
        "yardsticks_s": round(yardsticks_s, 4),
        "ns_a_word": round(spent["remove"] / len(masks) / spec.length * 1e9, 3),
        "arithmetic_s": round(sum(party.masking for party in survivors) + spent["add"] + spent["remove"], 3),
        "messages_s": round(spent["messages"], 3),
        "message_bytes": round(messages),
        "expansion": expansion(round(messages), clients, dim, bits),
        "exact": exact,
    }
    if processes > 1:
        figures |= in_processes(masked, total, masks, processes)
    return figures


def compare(clients: int, dim: int, drop: float, bits: int, clock: Callable[[], float], times: int) -> Iterator[Line]:
    """What an attempt costs in the mode ``consistent``, beside ``semi_honest``."""
    found: dict[SecureMode, list[dict[str, float]]] = {"semi_honest": [], "consistent": []}
    for _ in range(times):
        for mode, costs in found.items():
            start = clock()
            figures = measure(clients, dim, drop, mode, bits, clock, 1)
            costs.append(
                {
                    "client_ms": figures["client_ms"],
                    "coordinator_ms": 1e3 * (figures["messages_s"] + figures["server_s"]),
                    "client_bytes": figures["expansion"] * dim * bits / 8,
                    "attempt_s": clock() - start - figures["yardsticks_s"],
                }
            )
            if not figures["exact"]:
                raise SystemExit(f"The sum of {clients} clients in the mode {mode} is not that of their vectors.")
    medians = {
        mode: {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}
        for mode, costs in found.items()
    }
    plain = medians["semi_honest"]
    case = f"{clients} clients, {dim} numbers, {drop:g} dropped, consistent"
    for name, cost in medians["consistent"].items():
        yield Line(f"{case}, {name}", cost, COMPARED[name], Peer("semi_honest", plain[name]))


def expansion(messages: int, clients: int, dim: int, bits: int) -> float:
    """All bytes of a client over those of `dim` numbers of `bits` bits. messages: all but the masked vector's file."""
    spec = vector_spec(_sections(clients, dim, bits))
    file = encode_masked(MaskedHeader("att_" + "0" * 32, TASK, PLAN, MODEL, spec.digest), bytes(spec.packed_bytes))
    return round((messages + len(file)) / (dim * bits / 8), 4)


def encoding_seconds(clients: int, dim: int, bits: int) -> float:
    """The least time of three in which one client rotates and rounds a vector."""
    spec, sections = _section(dim), _sections(clients, dim, bits)
    vector = np.sin(np.arange(dim, dtype=np.float32)) / np.float32(math.sqrt(dim))
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        encode(
            sections,
            [spec],
            {"delta": vector},
            weight=1,
            weight_cap=1,
            binding=Binding(PLAN, MODEL),
            entropy=lambda count: bytes(count),
        )
        best = min(best, time.perf_counter() - start)
    return best


def _begin(clients: int, dim: int, drop: float, mode: SecureMode, bits: int, clock: Callable[[], float]) -> Attempt:
    """Keys of all clients, and the roster."""
    terms = SecureTerms(
        attempt="att_" + "0" * 32,
        mode=mode,
        corrupt=0.1,
        dropout=max(drop, 0.1),
        min_clients=max(1, clients - math.ceil(max(drop, 0.1) * clients)),
        max_clients=clients,
        weight_cap=1,
        sections=_sections(clients, dim, bits),
        noise=None,
        phase_ms=60_000,
    )
    attempt = Attempt(terms, clock, server.open_attempt(terms, plan=PLAN, model=MODEL), [])
    for index in range(clients):
        identity = SigningKey.generate()
        start = clock()
        state, keys = client.begin(
            terms, device=f"dev_{index:032x}", plan=PLAN, model=MODEL, identity=identity, floor=1
        )
        party = Party(index, state, identity, clock() - start)
        party.sizes["AdvertiseKeys"] = _size(keys)
        attempt.parties.append(party)
        attempt.feed(server.Advertised(f"dev_{index:032x}", identity.public, keys))
    attempt.feed(server.PhaseDeadline())
    return attempt


def _deal(attempt: Attempt) -> None:
    """Rosters go out, shares come back and are carried to whom they are for."""
    bundles: dict[int, Shares] = {}
    for place, party in _seated(attempt):
        roster = attempt.serve("messages", lambda place=place: server.roster_for(attempt.state, place))
        bundles[place] = attempt.tell(party, roster)
        attempt.feed(server.Shared(place, bundles[place]))
    for place, party in _seated(attempt):
        boxes = attempt.serve("messages", lambda place=place: server.shares_for(attempt.state, place, bundles))
        attempt.tell(party, boxes)


def _mask(attempt: Attempt, survivors: list[Party], spec: ring.VectorSpec) -> tuple[ring.RingVector, ring.RingVector]:
    """The sum of the survivors' masked vectors, and what the sum must be without masks."""
    total, expected = np.zeros(spec.length, np.uint32), np.zeros(spec.length, np.uint32)
    for party in survivors:
        vector = ring.reduced(words(party.index.to_bytes(32, "big"), 0, spec.length), spec)
        start = attempt.clock()
        party.state, packed = client.mask(party.state, vector)
        party.masking = attempt.clock() - start
        party.seconds += party.masking
        attempt.serve("add", lambda packed=packed: ring.add_packed(total, packed, spec))
        attempt.feed(server.MaskedArrived(_place(attempt, party)))
        expected += vector
    if attempt.state.phase is server.SecAggPhase.MASKED:
        attempt.feed(server.PhaseDeadline())
    return total, ring.reduced(expected, spec)


def _agree(attempt: Attempt, survivors: list[Party]) -> list[tuple[Party, Reveal]]:
    """The list of survivors goes out; what the clients reveal comes back."""
    listed = attempt.serve("messages", lambda: server.survivors_for(attempt.state))
    answers = [(party, attempt.tell(party, listed)) for party in survivors]
    if attempt.terms.mode == "semi_honest":
        return answers
    signed = {_place(attempt, party): agreement for party, agreement in answers}
    for place, agreement in signed.items():
        attempt.feed(server.Agreed(place, agreement))
    return [
        (party, attempt.tell(party, server.agreements_for(attempt.state, _place(attempt, party), signed)))
        for party in survivors
    ]


def _section(dim: int) -> SectionSpec:
    return SectionSpec(name="delta", length=dim, slices=((0, dim),))


def _sections(clients: int, dim: int, bits: int) -> tuple[SecureSection, ...]:
    return ring_sections([_section(dim)], clients=clients, weight_cap=1, norm=10.0, bits=bits)


def _seated(attempt: Attempt) -> list[tuple[int, Party]]:
    return [(_place(attempt, party), party) for party in attempt.parties]


def _place(attempt: Attempt, party: Party) -> int:
    device = f"dev_{party.index:032x}"
    return next(entry.position for entry in attempt.state.entries if entry.device == device)


def _size(message: Any) -> int:
    return len(canonical_json(message.model_dump(mode="json")))


if __name__ == "__main__":
    main()
