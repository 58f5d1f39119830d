"""Serving under TorchServe and Triton: handlers, emission, and the server itself."""
