"""Loggers: observers that carry a run to TensorBoard, to a service, or to a place of your own."""
