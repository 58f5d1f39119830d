"""From one version of a served model to the next, by what labels say, and back again."""

from calib_serve.promotion.host import Host
from calib_serve.promotion.judge import Judged, broken_promises, judged
from calib_serve.promotion.log import PromotionLog, Step
from calib_serve.promotion.rounds import Limits, Rounds, next_version
from calib_serve.promotion.swap import swap

__all__ = [
    "Host", "Judged", "Limits", "PromotionLog", "Rounds", "Step", "broken_promises", "judged",
    "next_version", "swap",
]  # fmt: skip
