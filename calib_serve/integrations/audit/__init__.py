"""Audits: prediction logs and label logs, measured in their engine: the monitor's sums by one group-by.

``audit`` measures; ``Columns`` says what their columns are called.
"""

from calib_serve.integrations.audit.engines import PASSWORD
from calib_serve.integrations.audit.expressions import Columns
from calib_serve.integrations.audit.measuring import Audit, Labels, Measured, Refusal, audit

__all__ = ["PASSWORD", "Audit", "Columns", "Labels", "Measured", "Refusal", "audit"]
