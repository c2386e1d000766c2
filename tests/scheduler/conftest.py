"""Schedulers that are stopped, and found to have closed every run."""

import pytest
from scheduler_house import WAIT_S, House


@pytest.fixture
def house():
    made = []

    def build(**limits):
        made.append(House(**limits))
        return made[-1]

    yield build
    for one in made:
        assert one.scheduler.stop(WAIT_S)
        assert one.engine.open_runs == 0
        one.cache.close()
