"""Contracts: checked on held-out samples, and watched by the labels of what is served."""
