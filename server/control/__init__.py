"""The control plane: what researchers and operators ask for."""
