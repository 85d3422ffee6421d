"""Private aggregation as an experiment asks for it: what is possible together, and what each mode promises."""
