"""`python -m softprune`."""

from softprune.cli import main

main()
