"""The ledger of a population's privacy budget: frozen events, a chain of digests over them, and the state they fold to.

Pure: no clock, no database, no key of its own. `events` says what can happen, `state` what follows from it, `chain`
makes it tamper-evident, `budget` says whether a cost may still be paid.
"""
