"""Run folders in; figures, tables and one-file pages out. Works where torch is not installed."""
