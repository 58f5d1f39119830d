"""Other people's systems: scikit-learn, MLflow, label feeds, audits in engines."""
