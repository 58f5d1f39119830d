"""Solvers that the fitters share: softmax regression, its penalties, folds."""
