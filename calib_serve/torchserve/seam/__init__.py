"""Where the class scores pass in a TorchServe handler that somebody else wrote."""
