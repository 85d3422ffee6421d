"""How good the predictions of a model are, and what a partner's columns are worth: functions of scores and labels that
whoever has both computes alone.
"""
