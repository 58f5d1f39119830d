"""The watch: predictions and late labels in; sums, alarms and metrics out. No torch, no onnx."""
