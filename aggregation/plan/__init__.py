"""The plan: what a client runs, as an immutable signed bundle. Nothing here but ``compile`` imports the compiler."""
