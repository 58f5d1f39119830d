"""Metrics of (probs, labels): one by one, or all at once with ``evaluate``.

Probabilities are (n, K), labels class ids (n,); logits are taken only where a name says so.
Everything is computed in float64; errors and shares are fractions.
"""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
