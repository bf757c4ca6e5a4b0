"""A selection and its thresholds in one call."""

from softprune.goals.select import select, set_thresholds_


def selected(tensors, allowed, *, guess=None):
    """What was selected of each tensor, and the key of the border (0 if everything is kept)."""
    selection = select(tensors, allowed, guess=guess)
    return set_thresholds_(tensors, selection), 0.0 if selection is None else selection.border
