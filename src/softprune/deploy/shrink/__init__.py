"""Shrinking: a network with dead channels becomes a smaller network without them."""

from softprune.deploy.shrink.shrinking import Shrunk, rebuild, shrink

__all__ = ["Shrunk", "rebuild", "shrink"]
