"""The record format: rows in named columns, in one file that can be appended to, checked, and read at any row."""
