"""Choice: a way to compute a layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Choice:
    """A way to compute a layer.

    Attributes:
        kind: "sparse", "dense" or "depthwise"; of a linear layer with few rows "index", "masks" or "dense".
        vectors: vectors of pixels per tile; 0 where there are no tiles.
        shifted: whether misaligned taps are shifted in registers.
        by_channel: whether threads share the channels instead of the tiles.
        blocks: blocks of input channels; what a tile reads of one block should fit into the first-level cache.
    """

    kind: str
    vectors: int
    shifted: bool = False
    by_channel: bool = False
    blocks: int = 1

    @property
    def text(self) -> str:
        """In a few words, for tables."""
        parts = [self.kind, *[f"{self.vectors} vectors"] * (self.vectors > 0)]
        parts += ["shifted"] * self.shifted + ["by channel"] * self.by_channel
        return ", ".join(parts + [f"{self.blocks} blocks"] * (self.blocks > 1))
