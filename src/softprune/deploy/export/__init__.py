"""From a module with zeros in it to files that other programs run."""

from softprune.deploy.export.exporting import export

__all__ = ["export"]
