"""What every test run shares: waiting torch threads sleep, and Hypothesis has no stopwatch."""

import os

from hypothesis import settings

# Two spinning torch processes on two cores slow each other about tenfold; set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A busy machine is slow, not wrong: no example fails for taking long.
settings.register_profile("surefoot", deadline=None, print_blob=True)
settings.load_profile("surefoot")
