"""``alerts.yml``: all alerts; docs/monitoring.md says what to do about each."""

from __future__ import annotations

from calib_serve.monitoring.alert import Alert
from calib_serve.monitoring.calibration_alerts import calibration_alerts
from calib_serve.monitoring.contract_alerts import CONTRACT_ALERTS
from calib_serve.monitoring.label_alerts import LABEL_ALERTS
from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.program_alerts import program_alerts

__all__ = ["alerts", "alerts_file"]


def alerts(options: MonitoringOptions) -> tuple[Alert, ...]:
    """Those whose numbers are recorded."""
    every = (*calibration_alerts(options), *CONTRACT_ALERTS, *LABEL_ALERTS, *program_alerts(options.jobs))
    return tuple(one for one in every if one.windows <= set(options.windows))


def alerts_file(options: MonitoringOptions) -> str:
    """The file."""
    rules = "".join(one.yaml(options.runbooks) for one in alerts(options))
    return (
        f"# Written by calib-serve export monitoring.\ngroups:\n  - name: calib_alerts\n    rules:\n{rules}"
    )
