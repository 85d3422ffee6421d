"""Write the graphs of this folder's fixtures that PyTorch and scikit-learn export.

    pip install 'coterie[bench]' && python tests/compute/importer/make_fixtures.py [NAME ...]

Weights are random, from fixed seeds; a name (``gru_17``) writes that file alone. fixtures/README.md says what is what.
"""

# The exporters have no types.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FIXTURES = Path(__file__).parent / "fixtures"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def _torch(
    name: str,
    make: Callable[[Any], Any],
    shape: tuple[int, ...],
    opset: int,
    *,
    dynamo: bool = False,
    optimize: bool = True,
    signed: bool = False,
) -> None:
    """A model exported for inputs of this shape, the first axis open. make: called with the module ``torch``.

    signed: keep what the exporter says of the module's parameters.
    """
    import torch

    torch.manual_seed(0)
    model = make(torch).eval()
    example = torch.randn(shape)
    path = FIXTURES / f"{name}.onnx"
    if dynamo:
        batch = torch.export.Dim("batch")
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            opset_version=opset,
            output_names=["y"],
            dynamic_shapes=({0: batch},),
            optimize=optimize,
        )
        program.save(str(path))
    else:
        torch.onnx.export(
            model,
            (example,),
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
    _without_debugging(path, keep=SIGNATURE if signed else "")


def _whole(name: str, make: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    """As the documentation says to export: every parameter stays under its own name."""
    _torch(name, make, shape, 20, dynamo=True, optimize=False, signed=True)


def _without_debugging(path: Path, keep: str = "") -> None:
    """Take out the texts that exporters add, which name files and lines of the machine, but for one of the graph."""
    model = onnx.load(str(path))
    kept = [(entry.key, entry.value) for entry in model.graph.metadata_props if entry.key == keep]
    model.doc_string = ""
    del model.metadata_props[:]
    for function in (model.graph, *model.functions):
        function.doc_string = ""
        del function.metadata_props[:]
        for part in (*function.node, *function.value_info):
            part.doc_string = ""
            del part.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.doc_string = ""
        if hasattr(value, "metadata_props"):
            del value.metadata_props[:]
    for key, value in kept:
        model.graph.metadata_props.add(key=key, value=value)
    onnx.save(model, str(path))


def _readings(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def _recurrent(kind: str, **options: Any) -> Callable[[Any], Any]:
    def make(torch: Any) -> Any:
        class Last(torch.nn.Module):
            """A recurrent layer, and a linear one of its last step."""

            def __init__(self) -> None:
                super().__init__()
                self.cell = getattr(torch.nn, kind)(5, 6, batch_first=True, **options)
                self.out = torch.nn.Linear(12 if options.get("bidirectional") else 6, 3)

            def forward(self, x: Any) -> Any:
                return self.out(self.cell(x)[0][:, -1])

        return Last()

    return make


def _fresh(torch: Any) -> Any:
    """Nothing has trained it yet: its scales are all ones, its offsets and running means all zeros."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def _groups(torch: Any) -> Any:
    """Normalisation by groups, which older operator sets write as normalisation by instances."""
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.GroupNorm(2, 4)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    )


def _trained(torch: Any) -> Any:
    """A network whose scales, offsets and statistics are numbers of their own, as after training."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.LeakyReLU(),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    with torch.no_grad():
        for layer in (model[2], model[6]):
            for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                tensor.add_(torch.rand(4))
    return model


def _unet(torch: Any) -> Any:
    """Halved twice and resized again, each half beside what it was made of."""
    nn, functions = torch.nn, torch.nn.functional

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect"), nn.Conv2d(3, 4, 3)])
            self.bottom = nn.Conv2d(4, 4, 3, padding=1)
            self.up = nn.Conv2d(8, 3, 3, padding=1)
            self.out = nn.Conv2d(6, 2, 1)

        def forward(self, x: Any) -> Any:
            first = torch.tanh(self.down[0](x))
            second = torch.tanh(self.down[1](functions.max_pool2d(first, 2)))
            third = torch.tanh(self.bottom(functions.avg_pool2d(second, 2)))
            wide = functions.interpolate(third, size=second.shape[2:], mode="nearest")
            merged = torch.tanh(self.up(torch.cat([second, wide], 1)))
            wide = functions.interpolate(merged, size=first.shape[2:], mode="bilinear", align_corners=False)
            return self.out(torch.cat([first, wide], 1))

    return UNet()


def _routed(torch: Any) -> Any:
    """The two best of four experts for each row, put back at their places, as mixtures of experts do."""

    class Routed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = torch.nn.Linear(5, 4), torch.nn.Linear(5, 12)

        def forward(self, x: Any) -> Any:
            best, places = torch.topk(self.gate(x), 2, dim=1)
            shares = torch.zeros_like(self.gate(x)).scatter(1, places, torch.softmax(best, 1))
            made = torch.tanh(self.experts(x)).reshape(-1, 4, 3)
            made[:, 1:3] = 0.5 * made[:, 1:3]
            return (shares[:, :, None] * made).sum(1)

    return Routed()


def _sklearn(name: str, make: Callable[[Any, Any], Any], features: int, opset: int, **options: Any) -> None:
    """A fitted learner. make: called with rows and classes (0, 1 or 2), returns it."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    rng = np.random.default_rng(7)
    labels = rng.integers(0, 3, 120)
    rows = (rng.normal(size=(120, features)) + 2 * np.eye(3, features)[labels]).astype(np.float32)
    learner = make(rows, labels)
    model = to_onnx(
        learner,
        initial_types=[("x", FloatTensorType([None, features]))],
        target_opset={"": opset, "ai.onnx.ml": 3},
        options={id(learner): options} if options else None,
    )
    onnx.save(model, str(FIXTURES / f"{name}.onnx"))
    _without_debugging(FIXTURES / f"{name}.onnx")


def _logistic(rows: Any, labels: Any) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(rows, labels)


def _text(rows: Any, labels: Any) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    return make_pipeline(Normalizer(), LogisticRegression()).fit(rows, np.array(["idle", "worn"])[labels // 2])


def _layers(rows: Any, labels: Any) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((8,), activation="tanh", max_iter=20, random_state=0).fit(rows, labels)


def _ridge(rows: Any, labels: Any) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge().fit(rows, np.stack([labels, rows.sum(axis=1)], axis=1))


def _normalised(torch: Any) -> Any:
    nn = torch.nn

    class Normalised(nn.Module):
        """A convolution with batch normalisation after it, a fixed table that is added, and a linear layer."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
            self.instance, self.head = nn.InstanceNorm2d(4), nn.Linear(4, 3)
            self.register_buffer("table", torch.linspace(-1, 1, 4).reshape(1, 4, 1, 1))
            self.bn.running_mean.normal_()
            self.bn.running_var.uniform_(0.5, 2)

        def forward(self, x: Any) -> Any:
            hidden = torch.relu(self.bn(self.conv(x)))
            return self.head((self.instance(hidden) * hidden + self.table).mean((2, 3)))

    return Normalised()


def _cells(torch: Any) -> Any:
    nn = torch.nn

    class Cells(nn.Module):
        """A GRU cell over three steps, whose gates are split, and a part of the state that is split unevenly."""

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(5, 6), nn.Linear(5, 2)

        def forward(self, x: Any) -> Any:
            state = torch.tanh(x[:, 0, :1] * torch.ones(6))
            for step in range(3):
                state = self.cell(x[:, step], state)
            first, last = torch.split(state, [1, 5], dim=-1)
            return self.head(last) * first

    return Cells()


def _tied(torch: Any) -> Any:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def _copies(torch: Any) -> Any:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].load_state_dict(model[0].state_dict())
    return model


MAKERS: dict[str, Callable[[], None]] = {
    "readings_17": lambda: _torch("readings_17", _readings, (2, 4), 17),
    "readings_21_dynamo": lambda: _torch("readings_21_dynamo", _readings, (2, 4), 21, dynamo=True),
    "readings_20_whole": lambda: _whole("readings_20_whole", _readings, (2, 4)),
    "fresh_13": lambda: _torch("fresh_13", _fresh, (2, 2, 8, 8), 13),
    "fresh_18_dynamo": lambda: _torch("fresh_18_dynamo", _fresh, (2, 2, 8, 8), 18, dynamo=True),
    "groups_17": lambda: _torch("groups_17", _groups, (2, 2, 8, 8), 17),
    "groups_21_dynamo": lambda: _torch("groups_21_dynamo", _groups, (2, 2, 8, 8), 21, dynamo=True),
    "cnn_20": lambda: _torch("cnn_20", _trained, (2, 2, 9, 9), 20),
    "gru_17": lambda: _torch("gru_17", _recurrent("GRU"), (2, 7, 5), 17),
    "gru_18_dynamo": lambda: _torch("gru_18_dynamo", _recurrent("GRU"), (2, 7, 5), 18, dynamo=True),
    "lstm_16": lambda: _torch("lstm_16", _recurrent("LSTM", num_layers=2, bidirectional=True), (2, 7, 5), 16),
    "rnn_19": lambda: _torch("rnn_19", _recurrent("RNN", nonlinearity="relu"), (2, 7, 5), 19),
    "unet_18": lambda: _torch("unet_18", _unet, (2, 1, 12, 12), 18),
    "routed_17": lambda: _torch("routed_17", _routed, (2, 5), 17),
    "normalised_17": lambda: _torch("normalised_17", _normalised, (2, 1, 6, 6), 17),
    "normalised_20_dynamo": lambda: _torch(
        "normalised_20_dynamo", _normalised, (2, 1, 6, 6), 20, dynamo=True, signed=True
    ),
    "normalised_20_whole": lambda: _whole("normalised_20_whole", _normalised, (2, 1, 6, 6)),
    "cells_20_whole": lambda: _whole("cells_20_whole", _cells, (2, 3, 5)),
    "tied_20_whole": lambda: _whole("tied_20_whole", _tied, (2, 4)),
    "copies_17": lambda: _torch("copies_17", _copies, (2, 4), 17),
    "copies_20_whole": lambda: _whole("copies_20_whole", _copies, (2, 4)),
    "sk_logistic_17": lambda: _sklearn("sk_logistic_17", _logistic, 5, 17),
    "sk_text_13": lambda: _sklearn("sk_text_13", _text, 5, 13),
    "sk_mlp_18": lambda: _sklearn("sk_mlp_18", _layers, 5, 18, zipmap=False),
    "sk_ridge_15": lambda: _sklearn("sk_ridge_15", _ridge, 4, 15),
}


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MAKERS:
        MAKERS[wanted]()
