"""Querator: a durable lease queue for operators."""

__version__ = "0.1.0"
