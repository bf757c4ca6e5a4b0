"""Other people's training loops. Each module here needs its own framework and is imported by its own name."""
