"""What an export is to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, cast, get_args

from coterie.compute.export.comparison import Thresholds
from coterie.compute.onnx.writer import Target
from coterie.compute.quant.settings import QuantSettings
from coterie.errors import InputError

Precision: TypeAlias = Literal["float32", "float16", "int8", "int8-dynamic"]
# What compilers for chips ask of their int8 models (tpu-mlir's defaults).
_BYTES = Thresholds(cosine=0.90, euclidean=0.55)

PARITY: Mapping[Precision, Thresholds] = MappingProxyType(
    {
        # Folded weights and another order of sums: some units in the last place, for each of many terms.
        "float32": Thresholds(cosine=1 - 1e-6, euclidean=0.999, largest=1e-3),
        # Eleven significant bits.
        "float16": Thresholds(cosine=0.999, euclidean=0.95),
        "int8": _BYTES,
        "int8-dynamic": _BYTES,
    }
)
"""How much the exported file must be like the model before; what falls below is refused."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """precision: float32; float16 weights and activations; int8 weights and activations, which needs examples to
    calibrate on; or int8-dynamic, int8 weights of matrix products whose other operand the runtime measures in every
    call (``quant.quantise_dynamic``). quantisation: how int8 is made; int8-dynamic heeds ``per_channel`` alone.
    sizes: those that a file leaves open, such as {"batch": 8}.
    batch: "fixed" for a file that answers batches of the model's own size; "any" for batches of every size, for which
    the model is of one row or leaves the size open; float32 and float16 alone, for the targets portable and cpu.
    target: see ``to_onnx``. calibration_rows: how many examples are looked at for int8, at most.
    repeats: timed runs of one batch, of each file. threads: of a session. parity: what the exported file must reach;
    None for the row of PARITY.
    """

    precision: Precision = "float32"
    quantisation: QuantSettings = field(default_factory=QuantSettings)
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    batch: Literal["fixed", "any"] = "fixed"
    target: Target = "portable"
    calibration_rows: int = 512
    repeats: int = 50
    threads: int = 1
    parity: Thresholds | None = None

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise InputError(
                f"ExportOptions: there is no precision {self.precision!r}.",
                hint=f"Choose one of {', '.join(get_args(Precision))}.",
            )
        if self.batch not in ("fixed", "any"):
            raise InputError(f"ExportOptions: batch is {self.batch!r}.", hint="Choose 'fixed' or 'any'.")
        open_files = self.precision in ("float32", "float16") and self.target in ("portable", "cpu")
        if self.batch == "any" and not open_files:
            raise InputError(
                f"ExportOptions: a batch of any size does not go with {self.precision} for the target {self.target}.",
                hint="Choose float32 or float16, and the target portable or cpu; or one size of batch.",
                code="batch_fixed",
            )
        for name in ("calibration_rows", "repeats", "threads"):
            value = cast(object, getattr(self, name))
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"ExportOptions: {name} must be a whole number of at least 1, got {value!r}.")
        for name, size in self.sizes.items():
            if not isinstance(cast(object, size), int) or size < 1:
                raise InputError(
                    f"ExportOptions: the size {name!r} must be a whole number of at least 1, got {size!r}."
                )

    @property
    def thresholds(self) -> Thresholds:
        """What the exported file must reach."""
        return PARITY[self.precision] if self.parity is None else self.parity
