"""Fuse an artifact into a torch module, a TorchScript or a torch.export file."""
