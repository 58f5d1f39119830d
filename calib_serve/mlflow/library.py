"""MLflow itself, which is imported where it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calib_serve.errors import CalibServeError, InputError, MissingDependency

_LINE = 300  # characters of its own words


def library(name: str = "mlflow") -> Any:
    """The module ``mlflow`` or one of its own; MissingDependency where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency("mlflow", "mlflow") from error


@contextmanager
def asking(doing: str) -> Iterator[None]:
    """Inside, what MLflow raises is an InputError that says what it was ``doing``."""
    errors = library("mlflow.exceptions")
    try:
        yield
    except CalibServeError:
        raise
    except (errors.MlflowException, OSError) as error:
        raise InputError(f"MLflow cannot {doing}: {str(error)[:_LINE]}") from error
