"""A classifier of MLflow, logged and registered; `mlflow models serve -m models:/digits/1` serves it."""

from typing import Any

import mlflow
import numpy as np


class Digits(mlflow.pyfunc.PythonModel):
    """Scores, (n, K) logits, of rows of features."""

    def load_context(self, context: Any) -> None:
        """The weights that were logged with it."""
        self.weights = dict(np.load(context.artifacts["weights"]))

    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> Any:
        """One row of scores a row of features."""
        return np.asarray(model_input, float) @ self.weights["W"] + self.weights["b"]


with mlflow.start_run():
    weights = {"weights": "weights.npz"}
    mlflow.pyfunc.log_model(
        name="model", python_model=Digits(), artifacts=weights, registered_model_name="digits"
    )
