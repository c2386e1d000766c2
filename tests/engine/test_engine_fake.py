"""The engine without a model keeps the contract that engines with one must keep."""

import pytest

from surefoot.testing.engine_contract import EngineContract
from surefoot.testing.fake_engine import FakeEngine


class TestFakeContract(EngineContract):
    @pytest.fixture
    def engine(self):
        return FakeEngine()
