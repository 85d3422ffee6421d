"""Messages between two parties of a session, sealed end to end: offers of keys, and a stream cipher with a state."""
