"""What cache tests share: small groups of every kind, parts made from a block's name, a cache on
a folder whose SSD tier can be told to fail, and a clock that moves when told to.

A part's bytes are a function of its block's name and group, so what a restore returns can be
checked against what a cold computation would have given, without an engine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from threading import Event

from surefoot.cache import Cache, Plan, Restored, open_cache
from surefoot.errors import TierError
from surefoot.identity import (
    Block,
    FeatureName,
    ModelName,
    Salt,
    feature_name,
    media_name,
    name_blocks,
    salt_of,
    settings_digest,
)
from surefoot.laws import Law, PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows
from surefoot.prompt import MediaItem, MediaSpan, Prompt, grid
from surefoot.record import content
from surefoot.state import (
    DTYPE_BYTES,
    ROWS,
    Component,
    ComponentSchema,
    Features,
    FeatureSchema,
    Group,
    Part,
)
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

BLOCK_TOKENS = 4
MODEL = ModelName(b"m" * 32)
SALT = salt_of(None, None)


def group(name: str, law: Law, *, width: int = 8) -> Group:
    """Return a group of one uint8 component: ``width`` bytes a row, or a snapshot of ``width``."""
    shape = (width,) if isinstance(law, RecurrentSnapshot) else (ROWS, width)
    return Group(name, law, (ComponentSchema("state", "uint8", shape),))


ROWS_ONLY = (group("rows", TokenRows()),)
WINDOW = (group("rows", TokenRows()), group("window", SlidingWindow(6)))
WINDOW_ONLY = (group("window", SlidingWindow(6)),)
HYBRID = (group("rows", TokenRows()), group("state", RecurrentSnapshot(), width=64))
SNAPSHOT_ONLY = (group("state", RecurrentSnapshot(), width=64),)
EVERY_LAW = (
    group("rows", TokenRows()),
    group("window", SlidingWindow(6)),
    group("pooled", PooledRows(2)),
    group("state", RecurrentSnapshot(), width=128),
)
FAMILIES = {
    "rows": ROWS_ONLY,
    "window": WINDOW,
    "window-only": WINDOW_ONLY,
    "hybrid": HYBRID,
    "snapshot-only": SNAPSHOT_ONLY,
    "every-law": EVERY_LAW,
}


FEATURES = FeatureSchema(
    (
        ComponentSchema("rows", "uint8", (ROWS, 8)),
        ComponentSchema("deep", "float32", (2, ROWS, 2)),
    )
)


def blocks_of(
    tokens: Iterable[int],
    *,
    media: tuple[MediaSpan, ...] = (),
    model: ModelName = MODEL,
    salt: Salt = SALT,
) -> tuple[Block, ...]:
    """Name the whole blocks of a prompt of these tokens."""
    prompt = Prompt.of(tokens, media)
    return name_blocks(prompt, grid(prompt, BLOCK_TOKENS), model, salt)


def part_of(one: Group, block: Block) -> Part:
    """Return the part that computing this block would give: a function of its name alone."""
    nbytes = one.part_bytes(block.start, block.end)
    seed = settings_digest(one.name, block.name.hex())
    data = (seed * (nbytes // len(seed) + 1))[:nbytes]
    schema = one.schema[0]
    shape = schema.shape_for(one.law.rows(block.start, block.end))
    return Part(one.name, (Component(schema.name, schema.dtype, shape, data),))


def image_of(number: int, *, tokens: int = 4) -> MediaItem:
    """Return what a tower would consume of a small picture of its own."""
    data = settings_digest("picture", str(number))
    shape, grid = (1, len(data)), (1, tokens, 1)
    name = media_name(b"p" * 32, "uint8", shape, grid, data)
    return MediaItem(name, "image", tokens, "uint8", shape, grid, data)


def feature_name_of(item: MediaItem, *, model: ModelName = MODEL, salt: Salt = SALT) -> FeatureName:
    """Name the item's features."""
    return feature_name(model, salt, item.name)


def features_of(item: MediaItem, *, schema: FeatureSchema = FEATURES) -> Features:
    """Return what the tower makes of an item: a function of its name alone."""
    made = []
    for one in schema.components:
        shape = one.shape_for(item.tokens)
        nbytes = prod(shape) * DTYPE_BYTES[one.dtype]
        seed = settings_digest(one.name, item.name.hex())
        made.append(
            Component(one.name, one.dtype, shape, (seed * (nbytes // len(seed) + 1))[:nbytes])
        )
    return Features(tuple(made))


def spoiled(part: Part) -> Part:
    """Return the part with other bytes: what an engine that does not repeat itself gives."""
    return Part(part.group, _spoiled(part.components))


def spoiled_features(features: Features) -> Features:
    """Return the features with other bytes, likewise."""
    return Features(_spoiled(features.components))


def _spoiled(components: Iterable[Component]) -> tuple[Component, ...]:
    return tuple(
        replace(one, data=bytes(byte ^ 1 for byte in bytes(one.data))) for one in components
    )


def commit(
    cache: Cache,
    block: Block,
    *,
    groups: Iterable[str] | None = None,
    turn: Plan | None = None,
    features: Sequence[FeatureName] = (),
    spoil: bool = False,
) -> int:
    """Commit the block's parts of the named groups, all of them by default."""
    parts = [
        part_of(one, block) for one in cache.groups if groups is None or one.name in set(groups)
    ]
    made = [spoiled(part) if spoil else part for part in parts]
    digested = [(part, content(part)) for part in made]
    return cache.commit(block, digested, turn=turn, features=features)


def take_turn(
    cache: Cache,
    tokens: Sequence[int],
    *,
    media: tuple[MediaSpan, ...] = (),
    deadline_s: float = 5.0,
) -> tuple[Plan, Restored]:
    """Run one turn as ``turn`` does: plan, restore, compute the rest, commit what is kept."""
    blocks = blocks_of(tokens, media=media)
    plan = cache.plan(blocks, limit=sum(block.end < len(tokens) for block in blocks))
    with cache.pinned(plan):
        restored = cache.restore(plan, deadline_s=deadline_s)
        for index in range(restored.boundary, len(blocks)):
            kept = cache.kept_groups(plan, index, prompt_tokens=len(tokens))
            commit(cache, blocks[index], groups=kept, turn=plan)
    return plan, restored


def check_restored(cache: Cache, plan: Plan, restored: Restored) -> None:
    """Assert that a restore handed over exactly what computing would have given (I2)."""
    named = {one.name: one for one in cache.groups}
    ends = [block.end for block in plan.blocks]
    placed = {(one.part.group, one.start): one for one in restored.parts}
    assert len(placed) == len(restored.parts)
    wanted = {
        (one.name, plan.blocks[index].start)
        for one in cache.groups
        if restored.boundary
        for index in one.law.needs(ends, restored.boundary)
    }
    assert placed.keys() == wanted
    for (name, index), digest in restored.contents.items():
        block = plan.blocks[index]
        expected = part_of(named[name], block)
        found = placed[name, block.start].part
        assert [bytes(one.data) for one in found.components] == [
            bytes(one.data) for one in expected.components
        ]
        assert digest == content(expected)
    assert sum(restored.sources.values()) == restored.boundary_tokens
    assert restored.verified == (restored.boundary > 0)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class SwitchedTier(SsdTier):
    """The SSD tier on the real disk, with faults to switch on.

    ``hold``: reads wait for ``release``. ``fail_puts``, ``fail_gets``: raise TierError. ``mangle``:
    what a read returns instead.
    """

    def __init__(self, root: Path, writer: str) -> None:
        super().__init__(root, RealDisk(), writer)
        self.hold = False
        self.hold_puts = False
        self.held = Event()
        self.release = Event()
        self.returned = Event()
        self.fail_puts = False
        self.fail_gets = False
        self.mangle: Callable[[bytes], bytes] | None = None
        self.gets: list[str] = []
        self.puts: list[str] = []
        self.deletes: list[str] = []

    def put(self, key: str, data: bytes) -> int:
        """Store, unless told to fail or to wait."""
        self.puts.append(key)
        if self.hold_puts:
            self.held.set()
            self.release.wait()
        if self.fail_puts:
            raise TierError("no space left on device")
        return super().put(key, data)

    def get(self, key: str) -> bytes | None:
        """Read, unless told to fail, to wait or to lie."""
        self.gets.append(key)
        if self.hold:
            self.held.set()
            self.release.wait()
            self.returned.set()
        if self.fail_gets:
            raise TierError("the medium failed")
        data = super().get(key)
        return self.mangle(data) if self.mangle and data is not None else data

    def delete(self, key: str) -> None:
        """Delete, and remember."""
        self.deletes.append(key)
        super().delete(key)


class Bench:
    """Opens caches of one family on one folder, with a clock and tiers that can be told to fail."""

    def __init__(self, folder: Path | None, groups: tuple[Group, ...] = EVERY_LAW) -> None:
        self.folder = folder
        self.groups = groups
        self.clock = Clock()
        self.wall = Clock(1_700_000_000.0)
        self.tiers: list[SwitchedTier] = []
        self.ram_bytes = 1 << 20
        self.ssd_bytes = 1 << 30
        self.feature_schema: FeatureSchema | None = FEATURES
        self.feature_ram_bytes = 1 << 20
        self.feature_ssd_bytes = 1 << 28
        self.free_floor_bytes = 0
        self.write_budget = 0
        self.io_threads = 2
        self.queue_bytes = 1 << 20
        self._writers = 0

    @property
    def tier(self) -> SwitchedTier:
        """The tier of the cache opened last."""
        return self.tiers[-1]

    @contextmanager
    def open(self, *, model: ModelName = MODEL) -> Iterator[Cache]:
        """Open a cache and close it at the end, whatever happened; queued writes are drained."""
        cache = self.start(model=model)
        try:
            yield cache
        finally:
            if self.tiers:
                self.tier.release.set()
            cache.drain(60)
            cache.close()

    def start(self, *, model: ModelName = MODEL) -> Cache:
        """Open a cache; the caller closes it."""
        return open_cache(
            model=model,
            groups=self.groups,
            feature_schema=self.feature_schema,
            store=self.folder,
            ram_bytes=self.ram_bytes,
            ssd_bytes=self.ssd_bytes,
            feature_ram_bytes=self.feature_ram_bytes,
            feature_ssd_bytes=self.feature_ssd_bytes,
            free_floor_bytes=self.free_floor_bytes,
            write_budget=self.write_budget,
            io_threads=self.io_threads,
            queue_bytes=self.queue_bytes,
            clock=self.clock,
            wall_clock=self.wall,
            random_bytes=self._random,
            make_tier=self._tier,
        )

    def records(self) -> list[Path]:
        """Return the record files on disk."""
        return sorted(self.folder.glob("records/*/*.rec")) if self.folder else []

    def _random(self, count: int) -> bytes:
        self._writers += 1
        return self._writers.to_bytes(count, "big")

    def _tier(self, folder: Path, writer: str) -> SsdTier:
        if folder.name != "records":
            return SsdTier(folder, RealDisk(), writer)  # fences, and what they bar
        self.tiers.append(SwitchedTier(folder, writer))
        return self.tier
