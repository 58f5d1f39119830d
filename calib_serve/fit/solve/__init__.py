"""Solvers that the fitters share: softmax regression, its penalties, folds."""

from calib_serve.fit.solve.strength import stratified

__all__ = ["stratified"]
