"""The verbs: from calibration data to an artifact, from a served model to its next version."""
