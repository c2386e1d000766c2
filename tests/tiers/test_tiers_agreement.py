"""RAM and SSD, driven together: the same answers, whenever the power goes."""

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from surefoot.testing.crash import CrashDisk, PowerCut
from surefoot.tiers.ram import RamTier
from surefoot.tiers.ssd import SsdTier

KEYS = st.sampled_from(["abc", "abd", "ab-", "xyz"])
VALUES = st.binary(max_size=9)


class Agreement(RuleBasedStateMachine):
    """The SSD tier loses its power now and then; the RAM tier is the model of what was promised."""

    def __init__(self):
        super().__init__()
        self.ram = RamTier()
        self.lives = 0
        self.open(CrashDisk())

    def open(self, disk):
        """Start a new process on ``disk``."""
        self.lives += 1
        self.disk = disk
        self.ssd = SsdTier(Path("/store"), disk, f"w{self.lives}")

    def power_returns(self, data):
        """Come back as any of the disks this one may be."""
        self.open(data.draw(st.sampled_from(list(self.disk.after_cut()))))

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.ram.put(key, value)
        self.ssd.put(key, value)

    @rule(key=KEYS)
    def delete(self, key):
        self.ram.delete(key)
        self.ssd.delete(key)

    @rule(key=KEYS, nbytes=st.integers(0, 9))
    def head(self, key, nbytes):
        value = self.ram.get(key)
        assert self.ssd.head(key, nbytes) == (value if value is None else value[:nbytes])

    @rule(data=st.data())
    def cut_between_operations(self, data):
        self.power_returns(data)

    @rule(key=KEYS, value=st.none() | VALUES, budget=st.integers(0, 8), data=st.data())
    def cut_inside_an_operation(self, key, value, budget, data):
        before = self.ram.get(key)
        self.disk.budget = self.disk.spent + budget
        try:
            if value is None:
                self.ssd.delete(key)
            else:
                self.ssd.put(key, value)
            expected = (value,)
        except PowerCut:
            expected = (before, value)
        self.power_returns(data)
        found = self.ssd.get(key)
        assert found in expected
        self.ram.delete(key)
        if found is not None:
            self.ram.put(key, found)

    @rule()
    def sweep(self):
        self.ssd.sweep([f"w{self.lives}"])

    @invariant()
    def they_agree(self):
        assert {key for key, _ in self.ram.list()} == {key for key, _ in self.ssd.list()}
        for key, nbytes in self.ram.list():
            assert self.ssd.get(key) == self.ram.get(key)
            assert dict(self.ssd.list())[key] >= nbytes


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
