"""Charts as inline SVG for pages: text and classes only, so that the page's colours, light or dark, apply."""

from softprune.reporting.svg.figure import figure, figures
from softprune.reporting.svg.plot import plot

__all__ = ["figure", "figures", "plot"]
