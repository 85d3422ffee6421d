"""Surveys: what they say of all rows is what all rows say, within the stated error, and no graph or sum knows more."""

import csv
import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.analytics.rule import HIGH, LOW, SETTINGS, method
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.server_part import Aggregates
from coterie.aggregation.methods import algorithm
from coterie.aggregation.preparation import Category, Draft, Number, Prepared, Survey
from coterie.aggregation.preparation.bins import LARGEST, REACH, SMALLEST, Range, logarithm, unlogarithm
from coterie.aggregation.preparation.counting import in_bins, of_texts
from coterie.aggregation.preparation.hashing import COLUMNS, LONGEST, MARK, bits_of, digits_of, matrix, text_of
from coterie.aggregation.preparation.rule import BINS, SLOTS, STAGE, SurveyRule
from coterie.aggregation.preparation.tabular import tabular
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.optim import adam
from coterie.privacy.dp.local import deviation
from coterie.protocol.conversion import to_json
from coterie.protocol.layout import Layout
from coterie.protocol.privacy import AdaptiveClip, ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.refinement import departure
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.schema_file import read_schema, write_schema
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.texts import as_bytes
from coterie.simulation import prepare, simulate, simulate_full

CITIES = ("Bonn", "Köln", "Ulm", "Bad Homburg vor der Höhe", "007")
DRAFT = Draft(
    (
        Number("age"),
        Number("vitals", columns=("pulse", "pressure")),
        Category("city"),
        Category("job", "work", ("cook", "nurse")),
    ),
    label=Category("ill"),
)
Rows = dict[str, NDArray[Any]]


def client(number: int) -> Rows:
    """Rows that are skewed by client: its own city is frequent, its people are older."""
    draw = np.random.Generator(np.random.PCG64(number))
    size = int(draw.integers(30, 90))
    own = np.full(5, 0.1)
    own[number % 5] += 0.5
    ill = draw.random(size) < 0.2 + 0.05 * (number % 3)
    return {
        "age": (draw.normal(40 + 3 * (number % 7), 8, size) + 15 * ill).astype(np.float32),
        "pulse": draw.normal(70, 9, size).astype(np.float32),
        "pressure": (draw.gamma(4, 4000, size) + 90_000).astype(np.float32),
        "city": draw.choice(np.array(CITIES), size, p=own),
        "work": draw.choice(np.array(["cook", "nurse", "pilot"]), size),
        "ill": np.where(ill, "yes", "no"),
    }


CLIENTS = [client(number) for number in range(12)]


def everything(column: str) -> NDArray[Any]:
    return np.concatenate([rows[column] for rows in CLIENTS])


@pytest.fixture(scope="module")
def found() -> Prepared:
    """Twelve clients, whose sums are therefore secret."""
    return prepare(Survey(DRAFT, most=8), CLIENTS)


def test_numbers_are_those_of_all_rows_within_the_stated_error(found: Prepared) -> None:
    assert [number.name for number in found.numbers] == ["age", "pulse", "pressure"]
    assert (found.rows, found.noise) == (len(everything("age")), 0.0)
    for number in found.numbers:
        values = everything(number.name).astype(float).clip(number.low, number.high)
        assert abs(number.mean - values.mean()) <= number.error
        assert abs(number.deviation - values.std()) <= number.error
        assert abs(number.median - np.median(values)) <= 2 * number.error
        assert 0 < number.error <= 0.05 * number.deviation


@pytest.mark.capability("F3")
def test_texts_and_classes_are_all_there_with_their_exact_counts(found: Prepared) -> None:
    named = {category.name: dict(category.counts) for category in found.categories}
    assert named["city"] == Counter(everything("city").tolist())
    assert named["ill"] == Counter(everything("ill").tolist())
    jobs: Counter[str] = Counter(everything("work").tolist())
    assert named["job"] == {"cook": jobs["cook"], "nurse": jobs["nurse"]}
    assert [category.full for category in found.categories] == [False] * 3


def test_the_schema_reads_rows_with_what_was_found(found: Prepared) -> None:
    assert departure(found.schema, DRAFT.declared) is None
    rows = found.schema.check(CLIENTS[3], "client 3")
    assert rows["city"].tolist() == [sorted(CITIES).index(city) + 1 for city in CLIENTS[3]["city"]]
    assert set(rows["job"].tolist()) == {0, 1, 2}
    assert found.schema.label == Label(name="ill", classes=("no", "yes"), others="dropped")
    age, vitals = found.schema.features[:2]
    offset, scale = vitals.normalisation()
    values = np.stack([everything("pulse"), everything("pressure")], axis=1)
    normalised = (values - offset) * scale
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(normalised.std(axis=0), 1, atol=0.05)
    assert isinstance(age.offset, float)


def test_secret_sums_say_the_same_as_open_ones(found: Prepared) -> None:
    assert prepare(Survey(DRAFT, most=8), CLIENTS, secure_aggregation=False) == found


def test_a_schema_file_holds_the_schema(found: Prepared, tmp_path: Path) -> None:
    assert read_schema(write_schema(tmp_path / "schema.json", found.schema)) == found.schema
    with pytest.raises(errors.ConfigurationError, match="There is no schema file"):
        read_schema(tmp_path / "other.json")
    assert DataSchema.from_json(to_json(found)["schema"]) == found.schema
    assert found.lines()[0] == f"{found.rows:.0f} rows answered." and len(found.lines()) == 7


def test_prepared_columns_train_and_bare_ones_do_not(found: Prepared) -> None:
    """The pressure's offset of 90 000 hides everything from a model that does not know it."""

    def loss(schema: DataSchema) -> float:
        wanted = Experiment(
            name="ill",
            model=tabular(schema, hidden=(16,)),
            schema=schema,
            loss=softmax_cross_entropy,
            metrics={"accuracy": accuracy},
            optimizer=adam(0.01),
            batch_size=16,
            epochs=3,
            secure_aggregation=False,
            rounds=RoundPolicy(rounds=3, cohort=12, evaluate_every=3),
        )
        return simulate(wanted, CLIENTS).rounds[-1].metrics["loss"]

    bare = tuple(replace(f, offset=0.0, scale=1.0) if f.dtype == "float32" else f for f in found.schema.features)
    prepared_loss = loss(found.schema)
    assert prepared_loss < 0.45 < loss(DataSchema(bare, found.schema.label))


# The sums, apart from plans.


def reference(rule: SurveyRule, told: Mapping[str, Any], draft: Draft, rows: Rows, hash_seed: int = 0) -> NDArray[Any]:
    """What some rows add, by counting."""
    count = len(next(iter(rows.values())))
    total = np.zeros(rule.size)
    sheet = rule.split(total)
    total[0] = count
    columns = [column for part in draft.numbers for column in (part.columns or (part.name,))]
    for place, column in enumerate(columns):
        values = rows[column].astype(np.float64)
        scaled = logarithm(values) if told["logarithmic"][0] else values
        bins = np.floor((scaled - told["low"][place]) / told["width"][place]).clip(0, BINS - 1).astype(int)
        np.add.at(sheet.numbers[place], bins, 1)
    for place, part in enumerate(draft.categories):
        texts = [str(text) for text in rows[part.column or part.name]]
        for bits, digits in zip(bits_of(texts), digits_of(texts, hash_seed), strict=True):
            asked = int(np.argmax(told[STAGE]))
            for slot, known in enumerate(told[SLOTS][place]):
                if known[0] == -2 or any(k >= 0 and k != d for k, d in zip(known, digits, strict=True)):
                    continue
                if asked < 3:
                    sheet.texts[place, slot, int(digits[asked])] += 1
                else:
                    sheet.texts[place, slot, MARK] += 1
                    if part.among is None:
                        sheet.texts[place, slot, : bits.size] += bits
    return total


def direct(survey: Survey, rows: Rows) -> Prepared:
    """The answer over some rows, through the server's part alone."""
    rule = survey.rule()
    part = method(rule)
    layout = Layout.of(
        {HIGH: (rule.size,), LOW: (rule.size,)}
        | {SETTINGS + name: value.shape for name, value in rule.settings.items()}
    )
    blind = algorithm(rule.name, rule.parameters).server  # as a server has it: without the declared texts
    weights = layout.flatten(
        {**layout.unflatten(np.zeros(layout.size, np.float32)), **dict(part.client.initial(lambda seed: {}))}
    )
    state = blind.init(layout)
    for _ in range(rule.rounds):
        version = layout.unflatten(weights)
        told = {name: version[SETTINGS + name] for name in rule.settings}
        placed = np.zeros(layout.size)
        placed[: rule.size] = reference(rule, told, survey.draft, rows, survey.seed)
        step, state = blind.apply(Aggregates(sections={"tally": placed}, clients=1, weight=1.0), state, lambda d: d)
        weights = (weights + step).astype(np.float32)
    return survey.answer(layout.unflatten(weights))


TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=9)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "Übermut", "7"]) | TEXTS, st.booleans()), min_size=2, max_size=40),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([1, 3]),
)
def test_every_text_of_the_share_is_found_and_nothing_else(
    rows: list[tuple[str, bool]], share: float, fewest: int
) -> None:
    texts = np.array([text for text, _ in rows])
    labels = np.array(["yes" if flag else "no" for _, flag in rows])
    labels[:2] = ("yes", "no")
    survey = Survey(Draft((Category("word"),), label=Label(name="y", low=0, high=1)), share=share, fewest=fewest)
    counted: Counter[str] = Counter(texts.tolist())
    wanted = {text: n for text, n in counted.items() if n >= max(fewest, share * len(texts) * (1 - 1e-12))}
    if not wanted:
        with pytest.raises(errors.ExperimentError, match="No text of 'word' is frequent enough"):
            direct(survey, {"word": texts})
        return
    answer = direct(survey, {"word": texts})
    assert answer.categories[0].counts == wanted
    assert answer.categories[0].unreadable == 0


@settings(max_examples=25)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.sampled_from([1.0, 1e-4, 1e9]),
    st.sampled_from([0.0, 1e4]),
)
def test_the_mean_is_within_its_error_at_every_scale(values: list[float], scale: float, offset: float) -> None:
    column = (np.array(values) * scale + offset * scale).astype(np.float32)
    survey = Survey(Draft((Number("x"),), label=Label(name="y", low=0, high=1)), tail=0.0)
    number = direct(survey, {"x": column}).numbers[0]
    exact = column.astype(float)
    slack = number.error + 1e-6 * float(np.abs(exact).max()) + 1e-6
    assert abs(number.mean - exact.mean()) <= slack
    assert abs(number.deviation - exact.std()) <= slack
    assert number.low - slack <= exact.min() and exact.max() <= number.high + slack


def test_the_graphs_add_what_counting_adds() -> None:
    """In every round, for rows of all kinds: no text, one without room, one that was cut from another's bytes."""
    survey = Survey(DRAFT, most=4)
    rule, rows = survey.rule(), dict(CLIENTS[0])
    rows["city"] = rows["city"].astype(object)
    rows["city"][:3] = ("", "x" * 64, "Bonn\N{LATIN SMALL LETTER E WITH ACUTE}")
    told: dict[str, Any] = dict(rule.settings)
    total = np.zeros(0)
    texts = [as_bytes([str(t) for t in rows[p.column or p.name]], LONGEST) for p in DRAFT.categories]
    stacked = Array(np.stack(texts, axis=1).astype(np.float32))
    values = np.stack([rows[column] for column in ("age", "pulse", "pressure")]).astype(np.float32)
    discovered = Array(np.array([part.among is None for part in DRAFT.categories], np.float32))

    for number in range(1, rule.rounds + 1):

        def weighed(weights: Mapping[str, Array], told: Mapping[str, Any] = told) -> Array:
            low, width, logarithmic = (Array(told[name]) for name in ("low", "width", "logarithmic"))
            bins = in_bins(Array(values), low, width, logarithmic, weights["numbers"])
            stage, slots = Array(told[STAGE]), Array(told[SLOTS])
            return bins.sum() + of_texts(stacked, stage, slots, weights["texts"], matrix(0), discovered).sum()

        zeros = {
            "numbers": Array(np.zeros((rule.numbers, BINS), np.float32)),
            "texts": Array(np.zeros((rule.texts, rule.most, COLUMNS), np.float32)),
        }
        added: Any = grad(weighed)(zeros)
        total = reference(rule, told, DRAFT, rows)
        sheet = rule.split(total)
        np.testing.assert_array_equal(np.asarray(added["numbers"]), sheet.numbers)
        np.testing.assert_array_equal(np.asarray(added["texts"]), sheet.texts)
        told = dict(rule.advance(total, told, number))


def test_hashes_are_of_all_bits_and_texts_come_back() -> None:
    texts = ["", "a", "b", "ab", "x" * 63, "x" * 62 + "y", "Köln"]
    digits = digits_of(texts, 0)
    assert len({tuple(row) for row in digits.tolist()}) == len(texts) and not digits[0].any()
    assert not np.array_equal(digits, digits_of(texts, 1))
    assert [text_of(bits.astype(bool)) for bits in bits_of(texts)] == [None, *texts[1:]]
    assert text_of(np.ones(504, bool)) is None
    # Anyone can draw it again: this is the first text's hash in this seed, wherever it is computed.
    assert digits_of(["coterie"], 0).tolist() == [PINNED]


PINNED = [174.0, 191.0, 16.0]


def test_bins_cover_every_magnitude_and_find_the_range() -> None:
    values = np.array([-LARGEST, -3.5, -SMALLEST, 0.0, SMALLEST, 7.0, LARGEST])
    np.testing.assert_allclose(unlogarithm(logarithm(values)), values, rtol=1e-12)
    assert np.abs(logarithm(values)).max() < REACH
    first = Range.everything(1, BINS)
    counts = np.histogram(logarithm([5.0] * 98 + [1e6, -1e6]), BINS, (-REACH, REACH))[0][None].astype(float)
    assert first.narrowed(counts, 100.0, 0.02, 0.0).edges(BINS)[0, [0, -1]].tolist() == pytest.approx(
        [2.6, 9.6], abs=0.1
    )
    assert first.narrowed(counts, 100.0, 0.0, 0.0).edges(BINS)[0, 0] < -1e6
    found = first.narrowed(counts, 100.0, 0.0, 2.0)
    assert found.edges(BINS)[0, 0] > 2  # single values are no more than the noise
    assert first.narrowed(0 * counts, 0.0, 0.0, 0.0).edges(BINS)[0, [0, -1]].tolist() == [-1, 1]
    # Where the bins have become too fine to stand out one by one, they are judged together; and else stay.
    thin = np.where(np.arange(BINS) < BINS // 2, 3.0, 0.0)[None]
    edges, halved = found.edges(BINS)[0], found.narrowed(thin, 384.0, 0.0, 10.0).edges(BINS)[0]
    assert halved[-1] == pytest.approx((edges[0] + edges[-1]) / 2, rel=0.1)
    assert found.narrowed(thin, 384.0, 0.0, 1e6).edges(BINS).tolist() == found.edges(BINS).tolist()


# Privacy.


def noised(epsilon: float, mechanism: Any = "gaussian", **more: Any) -> UserLevel:
    return UserLevel(clip=100.0, delta=1e-6, epsilon=epsilon, mechanism=mechanism, **more)


@pytest.mark.parametrize(("mechanism", "secure"), [("gaussian", False), ("discrete_gaussian", True)])
def test_noise_hides_clients_and_the_answer_says_how_much(mechanism: str, secure: bool) -> None:
    """Forty clients answer three times, or four; what is said is near the truth, and no text is made up by noise."""
    draft = Draft(
        (Number("age"), Category("job", "work", ("cook", "nurse", "diver"))), label=Label(name="y", low=0, high=1)
    )
    rows = [
        {name: client(n)[name] for name in ("age", "work")} | {"y": np.zeros(len(client(n)["age"]), np.int32)}
        for n in range(40)
    ]
    survey = Survey(draft, most=4)
    privacy = noised(60.0, mechanism)
    asked = survey.ask(clients=40, privacy=privacy, secure_aggregation=secure)
    assert (asked.rounds.weight_cap, asked.rounds.rounds) == (1, 3)
    run = simulate_full(asked, rows)
    answer = survey.answer(run.weights)
    ages = np.concatenate([part["age"] for part in rows]).astype(float)
    assert 57 < (run.history.rounds[-1].epsilon or 0) <= 60
    assert answer.noise > 0 and abs(answer.rows - len(ages)) < 0.25 * len(ages)
    (age,) = answer.numbers
    assert abs(age.mean - ages.mean()) <= age.error and age.error < 15
    assert 5 < 1 / float(np.asarray(answer.schema.features[0].scale)) < 25
    assert set(answer.categories[0].counts) == {"cook", "nurse"}
    assert answer.lines()[0].startswith("about ")


def test_clipped_sums_in_the_ring_are_those_in_the_open() -> None:
    """What one client adds lies in few places; a ring made for even vectors must not cut it."""
    rows: list[Rows] = [{"city": client(n)["city"], "y": np.zeros(len(client(n)["city"]), np.int32)} for n in range(10)]
    survey = Survey(Draft((Category("city"),), label=Label(name="y", low=0, high=1)), most=32)
    privacy = UserLevel(clip=150.0, delta=1e-6, epsilon=1e4)
    found = [prepare(survey, rows, privacy=privacy, secure_aggregation=secure) for secure in (True, False)]
    for secret, open_sums in zip(found[0].categories, found[1].categories, strict=True):
        assert dict(secret.counts) == pytest.approx(dict(open_sums.counts), abs=2)


def test_a_clip_is_fewer_rows_where_texts_are_spelled_out() -> None:
    """What docs/data.md says a clip is worth: the bits of a text that is to be found weigh more than its row."""
    cities = Draft((Category("city"),), label=Label(name="y", low=0, high=1))
    rule = Survey(cities).rule()
    told: Any = dict(rule.settings)
    norms: list[float] = []
    for number in range(1, rule.rounds + 1):
        total = reference(rule, told, cities, CLIENTS[0])
        norms.append(float(np.linalg.norm(total)) / total[0])
        told = dict(rule.advance(total, told, number))
    assert 1 < max(norms[:3]) < 1.5 and 2.5 < norms[3] < 5


def test_what_noise_hides_is_not_made_up() -> None:
    with pytest.raises(errors.ExperimentError, match="the noise of"):
        prepare(Survey(DRAFT, most=2), CLIENTS[:2], privacy=noised(0.5), secure_aggregation=False)


@pytest.mark.parametrize(
    "privacy",
    [
        noised(1.0, "blt", min_separation=2),
        noised(1.0, adaptive=AdaptiveClip()),
        ExampleLevel(clip=1.0, delta=1e-6, epsilon=1.0),
        LocalLevel(mechanism="sign_ds", epsilon=1.0),
    ],
)
def test_noise_that_a_survey_cannot_judge_is_refused(privacy: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="A survey is noised by") as caught:
        Survey(DRAFT).ask(clients=10, privacy=privacy)
    assert caught.value.reason == "query_invalid"


@pytest.mark.parametrize("fewest", [18, 10])
def test_the_stated_noise_is_that_of_a_round_in_which_all_answer(fewest: int) -> None:
    """Shares are made for the fewest honest survivors; all twenty bring more."""

    def stated(privacy: Any, **more: Any) -> float:
        asked = Survey(DRAFT, most=2).ask(clients=20, privacy=privacy, min_updates=fewest, **more)
        return asked.algorithm.parameters["noise"]

    secure = SecureAggregation(corrupt=0.1)
    shared = UserLevel(clip=100.0, delta=1e-6, noise_multiplier=0.5, mechanism="skellam")
    assert stated(shared, secure_aggregation=secure) == pytest.approx(50 * (20 / (fewest - 2)) ** 0.5, rel=0.03)
    own = LocalLevel(mechanism="gaussian", clip=100.0, epsilon=100.0, delta=1e-6)
    assert stated(own, secure_aggregation=False) == pytest.approx(20**0.5 * deviation(own, 1 << 16), rel=1e-3)


def test_a_plan_tells_a_server_no_declared_text() -> None:
    """Names of columns are in the schema that devices check; texts that are declared travel as hashes alone."""
    survey = Survey(Draft((Category("city", among=("Winterthur",)),), label=Label(name="y", low=0, high=1)))
    compiled = compile_plan(survey.ask(clients=3, secure_aggregation=False))
    carried = [compiled.plan.manifest.data, *compiled.plan.graphs.values(), compiled.initial_bytes]
    assert not any(b"Winterthur" in data for data in carried)


def test_sums_stay_exact_for_a_thousand_clients() -> None:
    rule = Survey(DRAFT).ask(clients=1000, secure_aggregation=True).algorithm.parameters
    assert rule["largest"] * 1000 < 2**32 <= 2 * rule["largest"] * 1024


# What cannot be.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Number("x", scaling="log"), "scaling must be one of"),  # pyright: ignore[reportArgumentType]
        (lambda: Category("x", among=()), "among must be texts"),
        (lambda: Category("x", among=("a" * 64,)), "texts of 1 to 63 bytes"),
        (lambda: Category("x", among=("\ud800",)), "texts of 1 to 63 bytes"),
        (lambda: Category("x", among=("a", "a")), "names a text twice"),
        (lambda: Draft(("age",), label=Label(name="y")), "features must be a tuple"),  # pyright: ignore[reportArgumentType]
        (lambda: Draft((Number("age"), Category("age")), label=Label(name="y")), "distinct names"),
        (lambda: Draft((Number("age"),), label=Number("y")), "the label must be"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_impossible_drafts_are_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=words) as caught:
        make()
    assert caught.value.reason == "schema_invalid"


def test_impossible_surveys_are_refused_and_other_versions_are_no_answer() -> None:
    usual: dict[str, Any] = {"draft": DRAFT}
    impossible: tuple[tuple[dict[str, Any], str], ...] = (
        ({"share": 2.0}, "share"),
        ({"most": 5000}, "most"),
        ({"tail": 0.5}, "tail"),
        ({"share": "0.1"}, "share must be a finite number"),
        ({"most": 2.5}, "most must be a whole number"),
        ({"seed": -1}, "seed"),
        ({"fewest": 0}, "fewest"),
        ({"draft": (Number("age"),)}, "asks a Draft, not a tuple"),
    )
    with pytest.raises(errors.ExperimentError, match="Lower `most`"):
        Survey(Draft(tuple(Category(f"c{n}") for n in range(20)), label=Label(name="y")), most=1000)
    for changes, words in impossible:
        with pytest.raises(errors.ExperimentError, match=words):
            Survey(**{**usual, **changes})
    with pytest.raises(errors.InputError, match="not the result of this survey") as caught:
        Survey(DRAFT).answer({"x": np.zeros(3, np.float32)})
    assert caught.value.reason == "query_mismatch"


def graph_free(column: Category | Number, cells: Any, **more: Any) -> Prepared:
    return direct(
        Survey(Draft((column,), label=Label(name="y", low=0, high=1)), **more), {column.name: np.array(cells)}
    )


def test_what_stands_in_a_few_rows_is_not_spelled_out() -> None:
    """Neither in the answer nor in the version that a coordinator keeps; texts that are declared are no secret."""
    patients = [f"patient {number}" for number in range(40)] + ["none"] * 10
    assert graph_free(Category("who"), patients).categories[0].counts == {"none": 10}
    with pytest.raises(errors.ExperimentError, match=r"frequent enough \(at least 10 rows\)"):
        graph_free(Category("who"), patients[:40])
    assert graph_free(Category("who", among=("none", "patient 7")), patients).categories[0].counts["patient 7"] == 1
    rule = Survey(Draft((Category("who"),), label=Label(name="y"))).rule()
    told: Any = dict(rule.settings)
    for number in (1, 2, 3):
        told = dict(
            rule.advance(
                reference(rule, told, Draft((Category("who"),), Label(name="y")), {"who": np.array(patients)}),
                told,
                number,
            )
        )
    assert (told[SLOTS][0, :, 0] >= 0).sum() == 1


def test_texts_that_cannot_be_shown_are_counted_as_such() -> None:
    """Half of a surrogate pair has no bytes; a control sequence would speak to the terminal of whoever asks."""
    found = graph_free(Category("c"), ["\ud800"] * 10 + ["\x1b[31m"] * 10 + ["New\N{NO-BREAK SPACE}York"] * 10)
    assert (dict(found.categories[0].counts), found.categories[0].unreadable) == ({"?": 10}, 2)
    assert "2 frequent hashes without a text that prints" in found.lines()[1]


def test_extremes_beyond_the_tail_are_named_and_within_it_do_nothing() -> None:
    usual = [float(number % 10) for number in range(1000)]
    (kept,) = graph_free(Number("x"), [*usual, 3e38], tail=0.01).numbers
    assert abs(kept.mean - 4.5) < 0.1 and kept.high < 11
    with pytest.raises(
        errors.ExperimentError, match=r"numbers of 'x' go from .* too wide a range to be scaled"
    ) as caught:
        graph_free(Number("x"), [*usual, *[3e38] * 20], tail=0.01)
    assert caught.value.reason == "survey_unanswered"


def test_a_label_of_one_class_is_no_label() -> None:
    rows: list[Rows] = [{"x": np.arange(5, dtype=np.float32), "y": np.array(["a"] * 5)} for _ in range(2)]
    with pytest.raises(errors.ExperimentError, match="only the class 'a'"):
        prepare(Survey(Draft((Number("x"),), label=Category("y")), most=2), rows)


def test_scalings_and_parts_that_stay_as_they_are() -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    rows: list[Rows] = [
        {
            "a": draw.lognormal(0, 1, 100).astype(np.float32),
            "b": draw.uniform(-5, 10, 100).astype(np.float32),
            "c": np.full(100, 7, np.float32),
            "code": draw.integers(0, 9, 100).astype(np.int32),
            "y": draw.integers(0, 2, 100).astype(np.int32),
        }
        for _ in range(3)
    ]
    code, label = Feature(name="code", dtype="int32", low=0, high=9), Label(name="y", low=0, high=1)
    draft = Draft((Number("a", scaling="robust"), Number("b", scaling="range"), Number("c"), code), label)
    schema = prepare(Survey(draft), rows).schema
    a, b, c, kept = schema.features
    assert (kept, schema.label) == (code, label)
    values = np.concatenate([part["a"] for part in rows])
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    assert (a.offset, a.scale) == (pytest.approx(middle, abs=0.06), pytest.approx(1 / (high - low), rel=0.1))
    assert (b.offset, b.scale) == (pytest.approx(-5, abs=0.2), pytest.approx(1 / 15, rel=0.03))
    assert (c.offset, c.scale) == (pytest.approx(7, abs=1e-4), 1.0)


# Real files.

ADULT = (
    Number("numbers", columns=("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")),
    *(Category(name) for name in ("workclass", "marital_status", "occupation", "relationship", "sex")),
)


@pytest.mark.capability("F3")
def test_skewed_census_files_train_without_anyone_seeing_a_row(data_dir: Path, tmp_path: Path) -> None:
    """Twelve CSV files of the census, each of people of few occupations, are prepared and trained on."""
    with gzip.open(data_dir / "adult_train.csv.gz", "rt", newline="") as file:
        table = list(csv.DictReader(file))[:3600]
    names = {name.replace("-", "_"): name for name in table[0]}
    table.sort(key=lambda row: row[names["occupation"]])
    paths: list[Path] = []
    for site in range(12):
        paths.append(tmp_path / f"site{site:02d}.csv")
        write(paths[-1], [row for place, row in enumerate(table) if place * 12 // len(table) == site])
    adult = tuple(
        replace(part, columns=tuple(names[c] for c in part.columns))
        if isinstance(part, Number)
        else replace(part, column=names[part.name])
        for part in ADULT
    )
    answer = prepare(Survey(Draft(adult, label=Category("income")), share=0.005, most=16), paths)
    jobs = Counter(row[names["occupation"]] for row in table)
    found = {category.name: category.counts for category in answer.categories}
    assert found["occupation"] == {job: n for job, n in jobs.items() if n >= 0.005 * len(table)}
    wanted = Experiment(
        name="income",
        model=tabular(answer.schema, hidden=(32,)),
        schema=answer.schema,
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=adam(0.01),
        batch_size=16,
        secure_aggregation=False,
        epochs=2,
        rounds=RoundPolicy(rounds=3, cohort=12, evaluate_every=3),
    )
    assert simulate(wanted, paths).rounds[-1].metrics["accuracy"] > 0.8


def write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
