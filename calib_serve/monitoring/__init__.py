"""What Prometheus, Alertmanager and Grafana are given: rules, alerts, dashboards and example settings.

``monitoring_files`` makes them and ``export_monitoring`` writes them; those in deploy/ are written that way.
"""

from calib_serve.monitoring.files import PARTS, Part, export_monitoring, monitoring_files
from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.queries import REPLICA_LABELS, WINDOWS
from calib_serve.monitoring.rules import recorded_clause_series, recorded_series, rules_file

__all__ = [
    "PARTS",
    "REPLICA_LABELS",
    "WINDOWS",
    "MonitoringOptions",
    "Part",
    "export_monitoring",
    "monitoring_files",
    "recorded_clause_series",
    "recorded_series",
    "rules_file",
]
