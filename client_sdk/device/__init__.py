"""A device: agent, trainers, local store, policy."""
