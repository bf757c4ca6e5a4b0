"""Channels: which of a network's belong together, which can go, and what is left without them. Nothing is cut here."""
