"""Obfuscation of an inference graph: it runs anywhere, and right only for who knows the password."""

from coterie.privacy.obfuscation.key import KEY, password_key
from coterie.privacy.obfuscation.obfuscate import obfuscate

__all__ = ["KEY", "obfuscate", "password_key"]
