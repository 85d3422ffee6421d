"""How long keys of Paillier's scheme are: what a session may ask for, and what `coterie.privacy.he.keys` makes."""

from typing import Final

KEY_BITS: Final = 3072
"""Of a key for which nothing else is asked: about 128 bits of security (NIST SP 800-57)."""
SIZES: Final = (2048, 3072, 4096)
"""Bits of n that are allowed; 2048 (about 112 bits of security) only where it is asked for."""
