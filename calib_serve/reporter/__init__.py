"""What every server does with a prediction: count it, and sign its receipt."""
