"""A party: an organisation's side of a session."""
