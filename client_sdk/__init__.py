"""The client side: the device agent and the researcher's control client."""
