"""Calibrations in MLflow: kept with a run, and served around a logged model.

with mlflow.start_run():
    calib_serve.mlflow.log(artifact, report="report.html")
    calib_serve.mlflow.log_calibrated(model_uri, artifact, model="digits", version="1")
artifact = calib_serve.mlflow.load("runs:/RUN/calibration")
"""

from calib_serve.mlflow.runs import load, log, log_calibrated
from calib_serve.mlflow.served import Calibrated

__all__ = ["Calibrated", "load", "log", "log_calibrated"]
