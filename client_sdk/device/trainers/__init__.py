"""How a device turns weights and rows into an update: by a plan's graphs, or by code of its owner."""
