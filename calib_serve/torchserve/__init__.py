"""The TorchServe side: handlers, emission, and the server itself."""
