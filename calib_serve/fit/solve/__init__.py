"""Solvers that the fitters share: softmax regression, its penalties, folds."""

from calib_serve.fit.solve.folds import folds_of, stratified

__all__ = ["folds_of", "stratified"]
