"""The servers that these tests share."""

from torchserve import register, torchserves

__all__ = ["register", "torchserves"]
