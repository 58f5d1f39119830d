"""A classifier of scikit-learn: trained, calibrated on samples it has not seen, and registered with that."""

import mlflow
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import calib_serve.integrations.mlflow
from calib_serve import Artifact, calibrate

x, x_held, y, y_held = train_test_split(*load_digits(return_X_y=True), test_size=0.4, random_state=0)

with mlflow.start_run() as run:
    model = LogisticRegression(C=100, max_iter=3000).fit(x, y)
    scores = mlflow.sklearn.log_model(
        model, name="model", pyfunc_predict_fn="predict_proba", input_example=x_held[:2]
    )
    artifact = calibrate(model.predict_proba(x_held), y_held, outputs="probabilities")
    mlflow.log_artifacts(artifact.save("calibration"), "calibration")
    calib_serve.integrations.mlflow.log_calibrated(
        scores.model_uri, artifact, model="digits", version="1", registered_model_name="digits"
    )

print(Artifact.load(mlflow.artifacts.download_artifacts(f"runs:/{run.info.run_id}/calibration")))
