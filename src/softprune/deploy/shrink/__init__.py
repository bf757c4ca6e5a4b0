"""Shrinking: a network with dead channels becomes a smaller network without them."""
