"""Processes that are the stages of one pipeline: what each runs and when, and where their tensors lie."""
