"""From experiment to plan to model version: plans, the round engine, reducers and methods."""
