"""Calibration as ONNX graph edits: one file a pass, each with what it requires, does and ensures."""
