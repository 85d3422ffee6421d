"""ONNX: the writer, the checker of untrusted graphs, and weights inside inference graphs."""
