"""Python's own if, while and for on traced values, rewritten into cond, while_loop and scan."""
