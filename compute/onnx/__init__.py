"""ONNX: writer, checker, weights."""
