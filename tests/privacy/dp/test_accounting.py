"""What releases cost: known answers, oracles, laws, and installs without dp-accounting."""

import json
import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ArgumentValueError, ConfigurationError, InputError
from coterie.privacy.dp import loss_distribution, normal, renyi
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import (
    KINDS,
    Approximate,
    Concentrated,
    Gaussian,
    PrivacyEvent,
    Pure,
    SampledGaussian,
    event_from_json,
    merged,
)
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json

norm: Any = import_module("scipy.stats").norm

EVENTS: list[PrivacyEvent] = [
    Gaussian(1.5, 10),
    SampledGaussian(1.1, 0.01, 100),
    Pure(0.5, 3),
    Approximate(0.1, 1e-7, 2),
    Concentrated(0.01, 0.001, 1e-9, True, 5),
]


@pytest.mark.parametrize("place", range(5))
def test_known_answers(known: dict[str, Any], place: int) -> None:
    case = known["accounting"][place]
    multiplier, rate, count = case["multiplier"], case["rate"], case["count"]
    event = Gaussian(multiplier, count) if rate == 1 else SampledGaussian(multiplier, rate, count)
    found = total_cost([event], case["delta"])
    # Our orders are finer than the library's: a little below its answer, and nowhere above.
    assert case["rdp"] * (1 - 1e-4) < found.epsilon_rdp < case["rdp"] + 1e-6
    assert found.epsilon_pld == pytest.approx(case["pld"], abs=2e-6)
    assert found.epsilon == found.epsilon_pld and found.method == ("exact" if rate == 1 else "pld")


def test_an_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def priced(events: object, delta: float) -> float:
        asked.append(delta)
        return 1.0

    monkeypatch.setattr(loss_distribution, "epsilon_of", priced)
    for first in (1, 100, 300, 320):
        # However the events are grouped, they are the same release.
        parts = [SampledGaussian(1.234, 0.0123, first), SampledGaussian(1.234, 0.0123, 321 - first)]
        assert total_cost(parts, 1.7e-5).epsilon == total_cost(parts[::-1], 1.7e-5).epsilon
    assert asked == [1.7e-5]


def _divergence(multiplier: float, rate: float, order: float) -> float:
    """By integration; the trapezoid rule is exact to rounding for such smooth functions that vanish at both ends."""
    x = np.linspace(-12 * multiplier, 12 * multiplier + order, 400_001)
    log_density = -(x**2) / (2 * multiplier**2) - math.log(multiplier * math.sqrt(2 * math.pi))
    ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * multiplier**2)))
    # Small powers without cancellation, large ones without overflow.
    small = np.exp(log_density) * np.expm1(np.minimum(order * ratio, 1))
    large = np.exp(log_density + order * ratio) - np.exp(log_density)
    excess = float(np.where(order * ratio < 1, small, large).sum() * (x[1] - x[0]))
    return math.log1p(excess) / (order - 1)


@pytest.mark.parametrize(("multiplier", "rate"), [(0.7, 0.001), (1.1, 0.05), (4.0, 0.5), (1.0, 0.9)])
def test_renyi_costs_are_the_divergence(multiplier: float, rate: float) -> None:
    """Exact at whole orders; between them never below, and exact where the series converges."""
    near = 0
    orders = (1.05, 1.5, 2.0, 2.6, 3.0, 3.7, 5.5, 8.0, 10.9, 17.0, 20.0)
    for order in orders:
        exact, ours = _divergence(multiplier, rate, order), renyi.cost(SampledGaussian(multiplier, rate), order)
        assert ours >= exact * (1 - 1e-6)
        if order.is_integer():
            assert ours == pytest.approx(exact, rel=1e-6)
        near += ours == pytest.approx(exact, rel=1e-6)
    assert near >= 7


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 20.0, 600.0])
def test_the_price_of_gaussian_noise_is_exact(mu: float, epsilon: float) -> None:
    exact = norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon + norm.logsf(epsilon / mu + mu / 2))
    assert normal.delta_of(mu, epsilon) == pytest.approx(exact, rel=1e-7, abs=1e-300)


@given(st.floats(1e-3, 50), st.floats(1e-12, 0.01))
def test_epsilon_and_mu_are_inverse(mu: float, delta: float) -> None:
    epsilon = normal.epsilon_of(mu, delta)
    assert normal.delta_of(mu, epsilon) <= delta
    if epsilon > 0:
        assert normal.mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_closed_form_and_loss_distribution_agree() -> None:
    for multiplier, count, delta in ((1.0, 1, 1e-5), (5.0, 100, 1e-6), (0.8, 3, 1e-10)):
        closed = total_cost([Gaussian(multiplier, count)], delta).epsilon
        assert loss_distribution.epsilon_of([Gaussian(multiplier, count)], delta) == pytest.approx(closed, rel=1e-4)


def test_every_release_raises_the_price() -> None:
    """The clip bits, a noised count, a noised metric: whatever is released beside the sum costs."""
    base: list[PrivacyEvent] = [Gaussian(1.0, 10)]
    first = total_cost(base, 1e-5).epsilon
    for release in (Gaussian(10.0), Gaussian(3.0, 10), Pure(0.01), Approximate(0.0, 5e-6), Concentrated(0.001)):
        assert total_cost([*base, release], 1e-5).epsilon > first


def test_failures_are_taken_from_delta() -> None:
    assert (
        total_cost([Gaussian(1.0), Approximate(0.0, 9e-6)], 1e-5).epsilon == total_cost([Gaussian(1.0)], 1e-6).epsilon
    )
    assert total_cost([Gaussian(1.0), Approximate(0.0, 1e-5)], 1e-5).epsilon == math.inf
    assert to_json(total_cost([Gaussian(1.0), Approximate(0.0, 1e-5)], 1e-5))["epsilon"] is None


def test_pure_epsilons_add_up_or_better() -> None:
    assert total_cost([Pure(0.5, 2)], 1e-9).epsilon <= 1.0
    assert total_cost([Pure(0.1, 100)], 1e-5).epsilon < 4.5
    assert total_cost([Pure(3.0)], 1e-12, accountant="rdp").epsilon == pytest.approx(3.0)


def test_replacing_costs_more_than_adding() -> None:
    for event in EVENTS:
        added, replaced = (
            total_cost([event], 1e-5, relation=relation) for relation in ("add_or_remove", "replace_one")
        )
        assert replaced.epsilon >= added.epsilon
        assert replaced.relation == "replace_one"
    # Replacing one vector by another moves the sum by twice the clip.
    assert (
        total_cost([Gaussian(2.0)], 1e-5, relation="replace_one").epsilon == total_cost([Gaussian(1.0)], 1e-5).epsilon
    )
    one = total_cost([SampledGaussian(1.0, 0.01, 1000)], 1e-5).epsilon_rdp
    two = total_cost([SampledGaussian(1.0, 0.01, 1000)], 1e-5, relation="replace_one").epsilon
    assert 2 * one < two < 2.6 * one


def test_nothing_costs_nothing() -> None:
    assert total_cost([], 1e-5).epsilon == 0 and total_cost([], 1e-5).method == "nothing"


@settings(max_examples=50)
@given(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=6), st.randoms())
def test_the_order_of_events_does_not_matter(events: list[PrivacyEvent], random: Any) -> None:
    shuffled = events[:]
    random.shuffle(shuffled)
    assert merged(shuffled) == merged(events)
    assert merged(merged(events)) == merged(events)


@pytest.mark.parametrize("place", range(len(EVENTS)))
def test_events_survive_json(place: int) -> None:
    event = EVENTS[place]
    assert event_from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Gaussian(4.0), '{"count":1,"event":"gaussian","multiplier":4}'),
        (SampledGaussian(1.5, 0.25, 3), '{"count":3,"event":"sampled_gaussian","multiplier":1.5,"rate":0.25}'),
        (Pure(2), '{"count":1,"epsilon":2,"event":"pure"}'),
        (Approximate(0.0, 1e-7), '{"count":1,"delta":1e-7,"epsilon":0,"event":"approximate"}'),
        (
            Concentrated(0.5, whole_orders=True),
            '{"count":1,"delta":0,"event":"concentrated","rho":0.5,"whole_orders":true,"xi":0}',
        ),
    ],
    ids=KINDS,
)
def test_events_are_written_as_ledgers_keep_them(event: PrivacyEvent, text: str) -> None:
    assert canonical_json(to_json(event)).decode() == text
    assert event_from_json(json.loads(text)) == event


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pure"])
def test_an_event_has_the_name_of_its_kind_alone(kind: Any) -> None:
    with pytest.raises(InputError, match="event must be the name of its kind"):
        Pure(1.0, event=kind)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"event": "os.system"},
        {"event": "gaussian"},
        {"event": "gaussian", "multiplier": 1.0, "count": 1, "more": 1},
        {"event": "gaussian", "multiplier": 0.0, "count": 1},
        {"event": "gaussian", "multiplier": float("nan"), "count": 1},
        {"event": "gaussian", "multiplier": "1", "count": 1},
        {"event": "gaussian", "multiplier": 1.0, "count": 0},
        {"event": "gaussian", "multiplier": 1.0, "count": True},
        {"event": "sampled_gaussian", "multiplier": 1.0, "rate": 1.5, "count": 1},
        {"event": "pure", "epsilon": -0.1, "count": 1},
        {"event": "concentrated", "rho": 1.0, "xi": 0.0, "delta": 0.0, "whole_orders": 1, "count": 1},
    ],
    ids=range(13),
)
def test_a_ledger_with_other_events_is_refused(value: object) -> None:
    with pytest.raises(InputError) as caught:
        event_from_json(value)
    assert caught.value.reason == "privacy_event_invalid"


def test_delta_must_be_a_probability() -> None:
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ArgumentValueError, match="delta"):
            total_cost([Gaussian(1.0)], delta)


def test_installs_without_the_library_account_by_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr(loss_distribution, "available", lambda: False)
    sampled = [SampledGaussian(1.77, 0.017, 170)]
    found = total_cost(sampled, 1e-5)
    assert found.epsilon == found.epsilon_rdp and found.epsilon_pld is None and found.method == "rdp"
    assert total_cost([Gaussian(1.77)], 1e-5).method == "exact"
    with pytest.raises(ConfigurationError, match=r'pip install "coterie\[server\]"') as caught:
        total_cost(sampled, 1e-6, accountant="pld")
    assert caught.value.reason == "extra_missing"


def test_a_loss_distribution_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="Concentrated"):
        total_cost([Concentrated(0.1)], 1e-5, accountant="pld")


def test_accounting_is_loaded_only_where_it_is_used() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from coterie.privacy.dp import accounting, rounds, statement, events; "
        "accounting.total_cost([events.Gaussian(1.0)], 1e-5); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('dp_accounting', 'scipy')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
