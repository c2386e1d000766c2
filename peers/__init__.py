"""Other people's servers, for the probe to be tried on: set up beside us, run one at a time.

Nothing here is part of the product, and no test of the product needs it. Each server lives in an
environment of its own below ``.peers/``.
"""
