"""Commands: the only room that reads arguments, the environment and the clock, and wires objects.

``main`` sets what must be set before torch is imported, runs one command, and turns every error
into one sentence and an exit code (``exits.py``).
"""

import os
import sys


def main() -> None:
    """Run the ``surefoot`` command and exit."""
    # Two spinning torch processes on two cores slow each other about tenfold; OpenMP reads this
    # once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' bars; our own lines say what goes on

    from surefoot.cli.app import run  # noqa: PLC0415  after the environment is set

    sys.exit(run(sys.argv[1:]))


__all__ = ["main"]
