"""An edge aggregator: a coordinator to the devices below it, a client to the coordinator above."""
