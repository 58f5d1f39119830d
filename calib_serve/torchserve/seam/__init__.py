"""The seam: the place where class scores pass in a foreign TorchServe handler."""
