"""Secure aggregation (SecAgg+): a coordinator learns the sum of its clients' vectors, and no single one.

Read in this order: `parameters` and `graph` (who masks with whom, how many shares open a secret), `context` (what each
key, box and signature is bound to), `keys`, `channel`, `shamir`, `masks`, `ring`, `unmask`. The protocol is that of
Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS
2020), on the primitives that WebCrypto, Android and CryptoKit have: X25519, HKDF-SHA256, AES-256-CTR, AES-256-GCM.
"""
