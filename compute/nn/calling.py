"""Calling a model that holds state."""

from dataclasses import replace

from coterie.compute.array import Array, as_array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, require
from coterie.errors import InputError


def forward(model: Module, params: Parameters, x: Array, mode: Mode = EVAL) -> tuple[Array, dict[str, Array]]:
    """The output for input ``x``, and every buffer after it: what layers made of theirs, else what it was.

    Pure: the buffers in ``params`` stay as they are, and the caller passes the new ones next time. Inside ``grad`` or
    ``value_and_grad`` return them beside the loss (``has_aux=True``). A layer that is called twice keeps what the last
    call made. Raises InputError for a layer that reports an array that it was not given as a buffer.
    """
    # Modules pass arrays on as they are, under names without prefixes; so a buffer is known by being this very object.
    given = {name: require(params, name, model) for name, spec in model.specs().items() if spec.role == "buffer"}
    if len({id(array) for array in given.values()}) < len(given):
        given = {name: array.alias() for name, array in given.items()}
        params = {**params, **given}
    after = dict(given)

    def record(before: Array, value: Array) -> None:
        name = next((name for name, array in given.items() if array is before), None)
        if name is None:
            raise InputError(
                f"A layer of {type(model).__name__} reports a new value of {before.type}, which is no buffer that it "
                "was given.",
                hint="Record params[name] itself, of a parameter whose spec has role 'buffer'.",
            )
        kept = as_array(value)
        if kept.type != before.type:
            raise InputError(
                f"A layer of {type(model).__name__} turns the buffer {name!r} from {before.type} into {kept.type}.",
                hint="Record a value of the buffer's own shape and dtype.",
            )
        after[name] = kept

    output = model(params, x, replace(mode, record=record))
    return output, after
