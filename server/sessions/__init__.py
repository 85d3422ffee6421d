"""Sessions of parties: joining, and the messages between them."""
