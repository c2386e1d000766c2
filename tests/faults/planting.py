"""A place where lies are planted: records that are sealed well and hold what is not so."""

from surefoot.cache import content, open_cache
from surefoot.chat.request import ChatInput, Image, Message, Role, TokensInput
from surefoot.engine import Sampling
from surefoot.record import feature_key, key, seal, seal_features, unseal, unseal_features
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import FakeEngine
from surefoot.turn import CacheMode, Delta, Done, Ledger, Serving, TurnRequest, turn
from surefoot.turn.audit import Audit, audit

C = 4
RAM, SSD = "ram", "ssd"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        self.now += 0.001
        return self.now


class Place:
    """A serving over the fake engine, with a store or without."""

    def __init__(self, store, *, ram_bytes=1 << 20, engine=None):
        self.store, self.ram_bytes = store, ram_bytes
        self.engine = engine or FakeEngine(block_tokens=C)
        self.clock = Clock()
        self.items = {}
        self.open()

    def open(self):
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            store=self.store,
            ram_bytes=self.ram_bytes,
            ssd_bytes=1 << 30,
            feature_ram_bytes=self.ram_bytes,
            feature_ssd_bytes=1 << 30,
            free_floor_bytes=0,
            io_threads=2,
            queue_bytes=1 << 20,
            clock=self.clock,
            wall_clock=self.clock,
        )
        self.serving = Serving(self.engine, FakeChat(), self.cache, self.clock, 60.0)

    def close(self):
        assert self.cache.drain(60)
        self.cache.close()

    def restart(self, *, lose_index=False):
        self.close()
        if lose_index:
            for path in self.store.glob("inventory.sqlite*"):
                path.unlink()
        self.open()

    def ask(self, given, mode=CacheMode.USE, **fields):
        """Take a turn; return its tokens and its receipt, with everything written."""
        made = given if isinstance(given, ChatInput) else TokensInput(tuple(given))
        fields = {
            "max_tokens": 6,
            "sampling": Sampling(top_logprobs=1),
            "ignore_eos": True,
        } | fields
        request = TurnRequest(id="t", input=made, mode=mode, **fields)
        self.ledger = Ledger(request, self.serving, self.clock())
        units = list(turn(self.ledger))
        assert self.engine.open_runs == 0
        assert isinstance(units[-1], Done)
        self.items |= {item.name: item for item in self.ledger.media}
        assert self.cache.drain(60)
        deltas = [one for one in units if isinstance(one, Delta)]
        return tuple(t.token for d in deltas for t in d.tokens), units[-1].receipt

    def cold(self, given, **fields):
        return self.ask(given, CacheMode.BYPASS, **fields)

    def chain(self, given, **fields):
        """Name the blocks of a prompt that was asked before."""
        self.ask(given, CacheMode.READ, **fields)
        return self.ledger.plan.blocks

    def audit(self, *, media=True):
        """Audit every chain; return the accounts, in the order of the audits."""
        accounts = []
        for leaf in self.cache.auditor.leaves():
            chain = self.cache.lineage(leaf.name)
            if chain is None:
                continue  # quarantined with a chain before it
            accounts.append(Audit(chain, self.items if media else {}))
            list(audit(self.serving, accounts[-1]))
            assert self.engine.open_runs == 0
        assert self.cache.drain(60)
        return accounts

    def stored(self):
        """Return the keys of all records by tier, as they lie there."""
        files = self.store.glob("records/*/*.rec") if self.store else ()
        return {
            RAM: {key(block.name, group) for block, group, _ in self.cache._ram.items()},
            SSD: {path.name.removesuffix(".rec") for path in files},
        }

    def tiers(self):
        ssd = {SSD: self.cache._ssd.tier} if self.store else {}
        return {RAM: self.cache._ram._tier, **ssd}

    def plant(self, block, group, part, *, where=(RAM, SSD), stated=None):
        """Seal another part under this block's name, as if a writer had been wrong all along."""
        stated = stated or content(part)
        at = key(block.name, group)
        for name in where:
            tier = self.tiers()[name]
            was, _ = unseal(tier.get(at), name=block.name, group=group)
            tier.put(at, seal(block, part, content=stated, features=was.features, fence=was.fence))
            if name == RAM:
                self.cache._ram.part((block.name, group)).content = stated
            else:
                with self.cache._ssd.inventory._write() as connection:
                    connection.execute(
                        "UPDATE parts SET content = ? WHERE name = ? AND grp = ?",
                        (stated, block.name, group),
                    )

    def plant_features(self, name, features, *, where=(RAM, SSD), stated=None):
        """Seal another item's features under this name, likewise."""
        tiers = {RAM: self.cache._features._ram._tier} | (
            {SSD: self.cache._ssd.tier} if self.store else {}
        )
        for one in where:
            was, _ = unseal_features(tiers[one].get(feature_key(name)), name=name)
            data = seal_features(
                name,
                features,
                model=was.model,
                media=was.media,
                tokens=was.tokens,
                content=stated or content(features),
                fence=was.fence,
            )
            tiers[one].put(feature_key(name), data)


def prompt(n, *, seed=1):
    return [(seed * 37 + i * 11) % 250 + 1 for i in range(n)]


def picture_of(text, data):
    """Return a conversation that shows one picture."""
    content = (text, Image(data, "here"))
    return ChatInput((Message(role=Role.USER, content=content),))


def state_of(engine, given, block, group):
    """Return what computing ``given`` leaves of a group in this block's place."""
    made = FakeChat().prompt(TokensInput(tuple(given)))
    run = engine.begin(made, Sampling())
    try:
        while run.position < block.end:
            start = run.position
            run.prefill(start + engine.block_tokens)
        (part,) = run.cut(block.start, [group])
        return part
    finally:
        run.close()
