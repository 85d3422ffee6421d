"""CSV files: their rows by the standard library, their columns by NumPy."""
