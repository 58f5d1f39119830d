"""A shadow of the served artifact: what labels say of both, and whether the shadow is better.

Receipts carry what the shadow said of the same input (``receipts.Shadow``), so one label counts for both.
"""

from calib_serve.watch.shadow.follower import MOST_TAGS, ShadowFollower, shadow_states
from calib_serve.watch.shadow.paired import ALPHA, LESS_RIGHT, MARGIN, ShadowTest
from calib_serve.watch.shadow.state import ShadowState, Verdict

__all__ = [
    "ALPHA", "LESS_RIGHT", "MARGIN", "MOST_TAGS", "ShadowFollower", "ShadowState", "ShadowTest", "Verdict",
    "shadow_states",
]  # fmt: skip
