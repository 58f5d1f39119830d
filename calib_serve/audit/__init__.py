"""Audits: prediction logs and label logs, measured in their engine: the monitor's sums by one group-by.

``audit`` measures; ``Columns`` says what their columns are called.
"""

from calib_serve.audit.audit import Audit, Labels, Measured, Refusal, audit
from calib_serve.audit.expressions import Columns
from calib_serve.engines import PASSWORD

__all__ = ["PASSWORD", "Audit", "Columns", "Labels", "Measured", "Refusal", "audit"]
