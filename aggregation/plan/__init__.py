"""The plan: what a client runs, as an immutable signed bundle. What makes one of an experiment is in ``compiling``."""
