"""FedAvg: train locally, average the changes by numbers of examples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data" (2017), algorithm 1. The client part is the plain step; the server part is the weighted mean, then the server
optimizer.
"""

from coterie.aggregation.horizontal.algorithm import Algorithm


def FedAvg() -> Algorithm:
    """Federated averaging."""
    return Algorithm(name="fedavg")
