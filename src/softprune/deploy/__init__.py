"""The ways out of the package: files, other formats, and an engine that runs sparse networks fast."""
