"""The project that `coterie new` writes: these files themselves, so that they are checked like all other code."""
