"""Watching: predictions and late labels in, sums, alarms and metrics out. No torch, no onnx."""
