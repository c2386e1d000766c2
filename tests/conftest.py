"""What every test run shares: waiting torch threads sleep, and Hypothesis has no stopwatch."""

import os

import pytest
from hypothesis import settings

# Two spinning torch processes on two cores slow each other about tenfold; set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A busy machine is slow, not wrong: no example fails for taking long.
settings.register_profile("surefoot", deadline=None, print_blob=True)
settings.load_profile("surefoot")


@pytest.fixture(scope="module")
def patience():
    """Give the disk of a slow machine time, in tests where no medium stalls on purpose."""
    from surefoot.cache import figures, quarantine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "LOOK_S", 60.0)
        patch.setattr(quarantine, "DURABLE_S", 60.0)
        patch.setattr(figures, "SHOW_S", 60.0)
        yield
