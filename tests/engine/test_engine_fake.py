"""The engine without a model keeps the contract that engines with one must keep."""

import pytest

from surefoot.testing.engine_contract import EngineContract
from surefoot.testing.fake_chat import image_item
from surefoot.testing.fake_engine import FakeEngine


class TestFakeContract(EngineContract):
    @pytest.fixture
    def engine(self):
        return FakeEngine()

    def image(self, engine, seed):
        return image_item(bytes([6, seed]))
