"""What the activations of a model are like on some rows: the calibration before quantisation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from onnx import ModelProto, TensorProto, helper

from coterie.compute.ir import NDArray
from coterie.compute.quant.histogram import BINS, Histogram, Range
from coterie.compute.quant.normal_form import in_normal_form
from coterie.compute.quant.placement import activations, results, sites
from coterie.compute.quant.ranges import chosen_range
from coterie.compute.quant.reading import read_model
from coterie.compute.quant.settings import QuantSettings
from coterie.compute.runtime.session import CPU, DTYPES, NodeArg, Session, first_line, open_session
from coterie.errors import GraphRefused, InputError

Batch = Mapping[str, NDArray]


def observed(model: bytes) -> tuple[str, ...]:
    """Names of the tensors whose ranges quantisation needs, in the order in which the model computes them.

    model: a float inference graph. They depend on its bytes alone, so clients that hold the same file mean the same by
    them. Raises GraphRefused for a graph that cannot be quantised.
    """
    return _observed(in_normal_form(read_model(model)))


def observe(
    model: bytes, batches: Iterable[Batch], *, bounds: Mapping[str, Range] | None = None, bins: int = BINS
) -> dict[str, Histogram]:
    """What those tensors are like on the rows of ``batches``.

    model: a float inference graph. batches: arrays by the names of its inputs, of its dtypes; a batch may hold more
    rows than the graph takes at once, which are then fed in parts, and rows that do not fill a part are left out.
    bounds: between which numbers to count, by tensor; without them only extremes are kept. Histograms of several calls,
    processes or clients add up if their bounds are the same.

    Raises InputError for inputs that do not fit, no rows, bounds of other tensors, and activations that are not finite;
    GraphRefused for a graph that cannot be quantised.
    """
    proto = in_normal_form(read_model(model))
    names = _observed(proto)
    if bounds is not None and set(bounds) != set(names):
        wrong = sorted(set(bounds) ^ set(names))
        raise InputError(f"The bounds must be those of {', '.join(names)}; {wrong[0]!r} is missing or not among them.")
    session = _revealing(proto, names)
    inputs = {argument.name: argument for argument in session.get_inputs()}
    computed = [name for name in names if name not in inputs]
    found: dict[str, Histogram] = {}
    for feed in feeds(batches, inputs):
        results = dict(zip(computed, _run(session, computed, feed), strict=True))
        for name in names:
            array = results[name] if name in results else feed[name]
            if not np.isfinite(array).all():
                raise InputError(
                    f"The activation {name!r} is not finite on a calibration row.",
                    hint="Look for NaN in the rows and weights, or for an overflow.",
                )
            seen = Histogram.of(array, None if bounds is None else bounds[name], bins)
            found[name] = found[name] + seen if name in found else seen
    if names and not found:
        raise InputError("There are no calibration rows.", hint="Give some hundred rows like those of later use.")
    return found


def ranges_of(observations: Mapping[str, Histogram], settings: QuantSettings) -> dict[str, Range]:
    """The range of every tensor by the settings' method: see `quant.ranges.chosen_range`."""
    return {name: chosen_range(seen, settings) for name, seen in observations.items()}


def _run(session: Session, names: Sequence[str], feed: Batch) -> Sequence[NDArray]:
    try:
        return session.run(names, feed) if names else ()
    except Exception as error:  # the runtime raises classes of its own, one per status code
        raise GraphRefused(f"The graph cannot be run on a calibration row: {first_line(error)}") from error


def _observed(proto: ModelProto) -> tuple[str, ...]:
    places = sites(proto)
    return (*activations(proto, places), *results(proto, places))


def _revealing(proto: ModelProto, names: tuple[str, ...]) -> Session:
    """A session whose outputs are these tensors too."""
    shown = ModelProto()
    shown.CopyFrom(proto)
    known = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    extra = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in known]
    shown.graph.output.extend(extra)
    return open_session(shown.SerializeToString(), threads=1, provider=CPU, spinning=False, arena=True, fallback=False)


def feeds(batches: Iterable[Batch], inputs: Mapping[str, NodeArg]) -> Iterator[Batch]:
    """The batches, checked, in parts of as many rows as the graph takes."""
    for number, batch in enumerate(batches):
        if not isinstance(cast(object, batch), Mapping) or set(batch) != set(inputs):
            given = ", ".join(batch) if isinstance(cast(object, batch), Mapping) else type(batch).__name__
            raise InputError(
                f"Calibration batch {number} holds {given or 'nothing'}; the model takes {', '.join(inputs)}.",
                hint="Give arrays by the names of the graph's inputs.",
            )
        arrays = {name: _fitting(name, np.asarray(value), inputs[name], number) for name, value in batch.items()}
        sizes = {int(size) for name in inputs for size in inputs[name].shape[:1] if isinstance(size, int)}
        lengths = {len(array) for name, array in arrays.items() if inputs[name].shape}
        if len(lengths) > 1 or len(sizes) > 1:
            raise InputError(f"Calibration batch {number}: its arrays have {sorted(lengths)} rows, not one number.")
        rows = next(iter(lengths), 0)
        size = next(iter(sizes), rows) or rows
        for start in range(0, rows - size + 1, max(size, 1)):
            yield {name: array[start : start + size] for name, array in arrays.items()}


def _fitting(name: str, array: NDArray, wanted: NodeArg, number: int) -> NDArray:
    dtype = DTYPES.get(wanted.type)
    shape = [size if isinstance(size, int) else None for size in wanted.shape]
    fits = array.dtype.name == dtype and array.ndim == len(shape)
    fits = fits and all(want in (None, size) for want, size in zip(shape[1:], array.shape[1:], strict=True))
    if not fits:
        raise InputError(
            f"Calibration batch {number}: {name!r} is {array.dtype.name}{list(array.shape)}; the model takes "
            f"{dtype}{list(wanted.shape)}, with any number of rows."
        )
    return array
