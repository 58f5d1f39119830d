"""Neural Clamping: a perturbation of the input and a temperature, fitted together (Tang 2024)."""
