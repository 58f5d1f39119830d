"""TorchServe archives: packing, re-packing, reading."""
