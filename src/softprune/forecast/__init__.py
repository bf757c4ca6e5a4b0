"""The schedule calculator: what the optimizer and its schedule will do to the thresholds, before the first step."""
