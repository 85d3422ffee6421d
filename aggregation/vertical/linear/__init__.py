"""Linear models of two organisations with different columns of the same rows: logistic, linear and Poisson regression.

Nobody helps, and nobody but the owner sees a label, a residual or a column. Each role keeps the coefficients of its own
columns. In a step the label owner encrypts, for each row, its side of the residual; the feature owner completes it
under encryption, adds up over rows, and both read sums over a batch alone.
"""
