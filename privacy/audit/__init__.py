"""Audits of a privacy claim: what can be proven of a run from the outside, to be held against what was claimed."""
