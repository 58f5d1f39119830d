"""The report: one HTML file, and each of its figures for your own axes.

``prepare_report`` collects the numbers, ``render`` and ``write_report`` make the page, and each
figure is a pair: ``reliability`` prepares what ``plot_reliability`` draws.
"""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
