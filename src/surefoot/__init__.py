"""Serve language models whose cache cannot change the answer, with a receipt that proves it."""

__version__ = "0.1.0"
