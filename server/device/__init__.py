"""The device plane: what devices ask for."""
