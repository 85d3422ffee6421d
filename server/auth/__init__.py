"""Who may do what: tokens, device signatures, nonces and the policy table."""
