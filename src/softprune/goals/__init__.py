"""Goals: totals that a training is to end with, and how they are met exactly."""
