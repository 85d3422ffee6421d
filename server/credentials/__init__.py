"""What proves who somebody is: bearer tokens and sealed nonces."""
