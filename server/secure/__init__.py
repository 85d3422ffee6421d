"""Secure aggregation on the coordinator: its attempts are driven here, and its messages relayed."""
