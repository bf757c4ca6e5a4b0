"""The same network in several engines, each in a process of its own, timed in interleaved bursts."""

from softprune.deploy.bench.contest import bench

__all__ = ["bench"]
