"""DP-FTRL by matrix factorisation: noise of different rounds that cancels in their sum."""
