"""Charts as SVG: for pages, whose colours they take, and as files that stand alone."""

from softprune.reporting.svg.figure import figure, figures, standalone
from softprune.reporting.svg.plot import plot

__all__ = ["figure", "figures", "plot", "standalone"]
