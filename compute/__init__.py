"""The compute core: a small autodiff compiler that writes training steps as plain ONNX."""
