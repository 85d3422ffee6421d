"""Working at a prompt: functions compiled when they are called, Python's control flow rewritten, tapes and modes.

Nothing that makes, checks or runs a plan needs it. Its public names are those of :mod:`coterie.compute`.
"""
