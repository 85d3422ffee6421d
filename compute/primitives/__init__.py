"""The closed core of primitives, one row each, by family. ``table.PRIMITIVES`` holds them all."""
