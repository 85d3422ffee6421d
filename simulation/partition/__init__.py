"""Dividing one data set among virtual clients. A partition is a sequence of row indices, one array per client.

Laws of every partition here: no row goes to two clients; no client is empty; the same arguments give the same
partition. Every row goes to some client unless the partitioner says otherwise. Each of them can write a manifest and
draw itself.
"""

from coterie.simulation.partition.changes import LabelNoise, Noise, Turns
from coterie.simulation.partition.checks import Change, RowIndices
from coterie.simulation.partition.even import continuous, iid, periods
from coterie.simulation.partition.labels import dirichlet, dirichlet_clients, pathological, shards
from coterie.simulation.partition.natural import natural, natural_groups
from coterie.simulation.partition.quantity import quantity
from coterie.simulation.partition.value import Partition, split

__all__ = [
    "Change",
    "LabelNoise",
    "Noise",
    "Partition",
    "RowIndices",
    "Turns",
    "continuous",
    "dirichlet",
    "dirichlet_clients",
    "iid",
    "natural",
    "natural_groups",
    "pathological",
    "periods",
    "quantity",
    "shards",
    "split",
]
