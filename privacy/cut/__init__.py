"""Protections of what crosses the cut of a split network: embeddings, gradients, labels (`coterie.protocol.cut`)."""
