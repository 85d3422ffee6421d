"""One fold: how the updates of a round become one aggregate, whoever brings them. See docs/architecture.md."""
