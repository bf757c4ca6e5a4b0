"""Compiled code: how the package's shared libraries are made. Imports the standard library only."""
