"""The report: one HTML file, and each of its figures for your own axes.

``prepare_report`` collects the numbers, ``render`` and ``write_report`` make the page, and each
figure is a pair: ``reliability`` prepares what ``plot_reliability`` draws.
"""

from calib_serve.core.errors import MissingDependency

try:
    import jinja2 as _jinja2  # noqa: F401
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise MissingDependency(error.name or "matplotlib", "report") from error

from calib_serve.report.page import render, write_page, write_report
from calib_serve.report.plot import (
    plot_bin_counts,
    plot_counts,
    plot_density,
    plot_histogram,
    plot_reliability,
    plot_risk_coverage,
    plot_smooth_reliability,
)
from calib_serve.report.prepare import (
    ClassRow,
    bin_count_curve,
    class_table,
    confidence_density,
    confidence_histogram,
    reliability,
    risk_coverage,
)
from calib_serve.report.tasks import Contents, prepare_report

__all__ = [
    "ClassRow",
    "Contents",
    "bin_count_curve",
    "class_table",
    "confidence_density",
    "confidence_histogram",
    "plot_bin_counts",
    "plot_counts",
    "plot_density",
    "plot_histogram",
    "plot_reliability",
    "plot_risk_coverage",
    "plot_smooth_reliability",
    "prepare_report",
    "reliability",
    "render",
    "risk_coverage",
    "write_page",
    "write_report",
]
