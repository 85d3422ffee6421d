"""Files of other exporters keep their answers, and become plain files of fewer operators."""

from pathlib import Path
from typing import Any, cast

import onnx
import pytest
from onnx import TensorProto, helper

from coterie.compute.export import export
from coterie.errors import InputError
from tests.compute.export.files import BATCH_NORM, FIXTURES, foreign, quick, rows


@pytest.mark.parametrize("name", ["cnn_13", "transformer_18_dynamo", "gru_17", "sk_logistic_17", "sk_text_13"])
def test_files_of_other_exporters_keep_their_answers(name: str) -> None:
    made = export(FIXTURES / f"{name}.onnx", quick(sizes={"batch": 3}))
    assert made.report.parity.largest < 1e-5 and made.report.agreement.largest < 1e-5
    assert made.report.batch == 3
    assert "BatchNormalization" not in made.report.after.operators
    opset = onnx.load_from_string(made.data).opset_import[0]
    assert (opset.domain, opset.version) == ("", 17)


@pytest.mark.capability("G2", "G4")
def test_g2_a_file_with_batch_norm_becomes_one_convolution() -> None:
    made = export(BATCH_NORM, quick(sizes={"batch": 2}))
    assert made.report.before.operators == {"BatchNormalization": 1, "Conv": 1}
    assert made.report.after.operators == {"Conv": 1}
    assert (made.report.before.parameters, made.report.after.parameters) == (54 + 12, 54 + 3)
    assert made.report.parity.largest < 1e-5
    assert onnx.load_from_string(made.data).graph.initializer[0].name == "w"


def test_weights_beside_a_file_are_counted_and_come_inside(tmp_path: Path) -> None:
    model = onnx.load_from_string(foreign(helper.make_node("Conv", ["x", "w"], ["y"]), w=rows(64, 2, 3, 3)))
    cast(Any, onnx).save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=0)
    made = export(tmp_path / "big.onnx", quick(sizes={"batch": 1}))
    assert made.report.before.bytes > (tmp_path / "big.bin").stat().st_size == 64 * 18 * 4
    assert not onnx.load_from_string(made.data).graph.initializer[0].external_data
    assert made.report.parity.largest < 1e-5


def test_a_size_without_a_name_is_called_by_its_input_and_axis() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy"]
    graph = helper.make_graph([node], "open", ends[:1], ends[1:])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(InputError, match="needs all of them") as refused:
        export(file, quick(sizes={"batch": 2}))
    assert "--size x.1=8" in (refused.value.hint or "")
    made = export(file, quick(sizes={"batch": 2, "x.1": 3}))
    assert [each.dim_value for each in onnx.load_from_string(made.data).graph.input[0].type.tensor_type.shape.dim] == [
        2,
        3,
    ]


def test_an_output_of_a_single_number_is_compared_too() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("ReduceMean", ["h"], ["y"], keepdims=0)]
    made = export(foreign(*nodes), quick(sizes={"batch": 2}))
    assert made.report.agreement.largest < 1e-6 and made.report.parity.largest < 1e-6
