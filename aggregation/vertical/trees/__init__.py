"""Boosted trees over columns that several organisations have, of the same rows: SecureBoost (Cheng et al.,
arXiv:1901.08755) with the packing and histogram subtraction of SecureBoost+ (Chen et al., arXiv:2110.10927).

The label owner encrypts each row's gradient and hessian; the others add up what falls into each bin of their columns,
and send the sums back; the label owner chooses splits and tells each owner of a column which of its own were chosen.
Read in this order: `terms` (what is asked), `binning`, `histograms` and `splitting` (what any one side computes),
`forest` (the model), `messages`, `label_side` and `feature_side` (the two programs), `together` (all in one process).

Nothing here does input or output: a side is a generator that yields what it sends and what it waits for.
"""
