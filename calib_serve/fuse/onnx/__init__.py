"""Fuse an artifact into an ONNX graph: passes that each edit one place, then the proof."""
