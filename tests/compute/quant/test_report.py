"""The report answers what quantisation cost and gained, from the runtime itself."""

import numpy as np
import pytest

from coterie.compute.quant import QuantSettings, quantise, report
from coterie.compute.quant.reporting import operators_run
from coterie.compute.runtime.session import available_providers
from coterie.errors import GraphRefused, InputError
from tests.compute.quant.graphs import small_cnn, stripes


@pytest.mark.capability("G11")
def test_accuracy_size_latency_casts_and_providers_are_told() -> None:
    model, calibration, labels = small_cnn()
    test = stripes(600, 2)
    after = quantise(model, [{"x": calibration}])
    told = report(model, after, {"x": test["x"]}, labels, calls=11)
    assert (told.before.size, told.after.size) == (len(model), len(after))
    assert told.before.score > 0.9 and told.score_loss == told.before.score - told.after.score <= 0.02
    assert told.before.latency_ms > 0 < told.after.latency_ms
    assert (told.before.integer, told.before.float, told.before.casts) == (0, 4, 0)
    assert (told.after.integer, told.after.float, told.after.casts) == (4, 0, 1), "one cast, of the input"
    assert set(told.after.providers) == set(available_providers()) and told.after.providers["CPUExecutionProvider"]
    assert told.agreement >= 0.97
    lines = str(told).splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["size", "score", "latency_ms", "casts", "integer", "float"]


@pytest.mark.capability("G11")
def test_casts_that_no_kernel_joins_are_counted() -> None:
    model, calibration, _ = small_cnn()
    few = operators_run(quantise(model, [{"x": calibration}], QuantSettings(activation_bits=4)))
    assert few["QuantizeLinear"] + few["DequantizeLinear"] >= 8


def test_a_score_of_ones_own_is_averaged_and_too_few_rows_are_refused() -> None:
    model, calibration, labels = small_cnn(200)
    after = quantise(model, [{"x": np.concatenate([calibration] * 4)}])
    test = stripes(600, 2)
    told = report(model, after, {"x": test["x"][:450]}, labels, score=lambda out, _: out[:, 0] * 0 + 0.5, calls=1)
    assert told.before.score == told.after.score == 0.5
    with pytest.raises(InputError, match="not enough rows"):
        report(model, after, {"x": test["x"][:50]}, labels)
    with pytest.raises(GraphRefused):
        report(b"nothing", after, {"x": test["x"]}, labels)
