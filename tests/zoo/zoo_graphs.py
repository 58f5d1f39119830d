"""All graphs of the zoo: a dozen small ones, and the others."""

from __future__ import annotations

import zoo_estimators
import zoo_networks
import zoo_rewritten

SMALL = [*zoo_estimators.SMALL, *zoo_networks.SMALL, *zoo_rewritten.SMALL]
LARGE = [*zoo_estimators.LARGE, *zoo_networks.LARGE, *zoo_rewritten.LARGE]
