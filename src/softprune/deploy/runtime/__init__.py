"""Running exported networks: `load("model.spx")` gives an engine; needs NumPy and the compiled kernels only."""
