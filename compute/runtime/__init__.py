"""Running graphs: executables on stock ONNX Runtime, the step loop, the NumPy reference and the conformance check of
providers.
"""
