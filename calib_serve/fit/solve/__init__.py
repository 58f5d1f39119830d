"""Solvers that the fitters share: softmax regression, its penalties, folds."""

from calib_serve.fit.solve.folds import stratified

__all__ = ["stratified"]
