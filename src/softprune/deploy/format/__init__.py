"""The .spx format: its operations, its files and their meaning in NumPy; needs NumPy only."""
