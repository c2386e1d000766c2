"""The cache machine: a real cache on a real folder under every rule that can happen to it.

The model is what computing would give (a function of the block's name) plus what was damaged. After
each step: used bytes are what a recount says and within capacity (I6), pinned parts are where they
were (I7); every restore is compared bit for bit (I2), and after an eviction nothing dead is left
(I13). What is behind a fence, by its own name or by any that it descends from, is not offered again
before somebody who knew the fence computed it anew (I8): here, elsewhere and after a restart.

Features of media items live in the same store, under budgets of their own; what was not found once
is not found again before somebody commits it.
"""

import shutil
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from surefoot.cache.fences import Reason
from surefoot.cache.forest import Node
from surefoot.cache.offline import quarantine_in
from surefoot.errors import SetupError
from surefoot.laws import restorable
from surefoot.record import feature_key
from surefoot.record import key as record_key
from surefoot.testing.cache_kit import (
    BLOCK_TOKENS,
    FAMILIES,
    Bench,
    blocks_of,
    check_restored,
    commit,
    feature_name_of,
    features_of,
    image_of,
    spoiled_features,
)

pytestmark = pytest.mark.usefixtures("patience")

ROOMY = 1 << 20
SMALL_RAM = (0, 1_500, 6_000, ROOMY)  # a record of these groups is about 900 bytes
SMALL_SSD = (0, 20_000, 60_000, 1 << 30)  # a file takes up 4,096
PICTURES = [image_of(number) for number in range(8)]

prompts = st.tuples(st.lists(st.sampled_from([0, 1]), max_size=7), st.integers(0, 3))
near = st.integers(0, 2**16)
pictures = st.sampled_from(PICTURES)


def tokens_of(prompt):
    choices, tail = prompt
    body = [
        1_000 * choice + 10 * index + at
        for index, choice in enumerate(choices)
        for at in range(BLOCK_TOKENS)
    ]
    return body + [7] * tail


def consumed_by(blocks):
    """Return, by block, the features that it consumes: its second and third may show a picture."""
    shows = {4: PICTURES[0], 8: PICTURES[1]}
    return tuple(
        (feature_name_of(shows[block.start]),)
        if block.start in shows and block.ids[1]  # the second choice
        else ()
        for block in blocks
    )


class CacheMachine(RuleBasedStateMachine):
    turns = Bundle("turns")

    @initialize(
        family=st.sampled_from(sorted(FAMILIES)),
        ram=st.sampled_from(SMALL_RAM),
        feature_ram=st.sampled_from(SMALL_RAM),
    )
    def begin(self, family, ram, feature_ram):
        self.scope = ExitStack()
        folder = Path(self.scope.enter_context(tempfile.TemporaryDirectory()))
        self.bench = Bench(folder / "store", FAMILIES[family])
        self.bench.ram_bytes, self.bench.feature_ram_bytes = ram, feature_ram
        self.absent = {feature_name_of(one) for one in PICTURES}  # until they are committed
        self.open_turns = {}
        self.above = {}  # by block name: whatever a fence may name that bars the block
        self.computed = {}  # by key: the last fence that whoever computed it knew
        self.chains = {}  # the blocks of each prompt, by the last, the latest at the end
        self.damaged = set()  # keys of files that do not hold what was written, or are gone
        self.cache = self.bench.start()

    def teardown(self):
        if not hasattr(self, "scope"):
            return
        for turn in list(self.open_turns):
            self.end(turn)
        self.cache.drain(60)
        self.cache.close()
        self.scope.close()

    # What turns do.

    @rule(prompt=prompts)
    def take_a_turn(self, prompt):
        plan = self.plan(prompt)
        with self.cache.pinned(plan):
            restored = self.cache.restore(plan, deadline_s=5)
            for index in range(restored.boundary, len(plan.blocks)):
                kept = self.cache.kept_groups(plan, index, prompt_tokens=len(tokens_of(prompt)))
                self.compute(plan, index, kept)
        self.check(plan, restored)
        again = self.cache.plan(plan.blocks, limit=plan.limit, features=plan.features)
        if self.bench.ram_bytes == ROOMY and not self.open_turns and not restored.failed:
            assert again.boundary == again.limit

    def plan(self, prompt):
        tokens = tokens_of(prompt)
        blocks = self.blocks(prompt)
        limit = sum(block.end < len(tokens) for block in blocks)
        plan = self.cache.plan(blocks, limit=limit, features=consumed_by(blocks))
        if blocks:
            self.chains.pop(blocks[-1].name, None)
            self.chains[blocks[-1].name] = blocks
        return plan

    def blocks(self, prompt):
        blocks = blocks_of(tokens_of(prompt))
        above = {blocks[0].parent} if blocks else set()
        for block, consumed in zip(blocks, consumed_by(blocks), strict=True):
            above = {*above, block.name, *consumed}
            self.above[block.name] = above
        return blocks

    def compute(self, turn, index, groups=None):
        """Commit a block in a turn; it counts if nothing that it descends from was fenced since."""
        block, number = turn.blocks[index], self.cache._number(turn)
        commit(self.cache, block, groups=groups, turn=turn, features=turn.features[index])
        if all(number >= fence.number for fence in self.fences_on(block.name)):
            self.note(block, groups, number)

    def note(self, block, groups, number):
        for group in self.bench.groups:
            key = (block.name, group.name)
            if groups is None or group.name in groups:
                self.computed[key] = max(self.computed.get(key, 0), number)

    def fences_on(self, name):
        known, above = self.cache._fences.known(), self.above[name]
        return [fence for fence in known if fence.name is None or fence.name in above]

    def sound(self, key):
        """Return whether a part may be offered: who computed it knew every fence on it."""
        return all(self.computed[key] >= fence.number for fence in self.fences_on(key[0]))

    @rule(target=turns, prompt=prompts)
    def begin_a_turn(self, prompt):
        plan = self.plan(prompt)
        scope = ExitStack()
        scope.enter_context(self.cache.pinned(plan))
        self.open_turns[plan] = (scope, {key for key in plan.keys if self.there(key)})
        return plan

    @rule(turn=turns)
    def restore_what_was_planned(self, turn):
        if turn in self.open_turns:
            before = self.cache._number(turn)
            restored = self.cache.restore(turn, deadline_s=5)
            assert self.cache._number(turn) == before or restored.failed
            # It goes on standing on what it restored, and lets go of the rest.
            used = {(turn.blocks[index].name, group) for group, index in restored.contents}
            scope, keys = self.open_turns[turn]
            self.open_turns[turn] = (scope, keys & used)
            self.check(turn, restored)

    @rule(turn=turns, index=near)
    def commit_in_a_turn(self, turn, index):
        if turn in self.open_turns and turn.blocks:
            self.compute(turn, index % len(turn.blocks))

    @rule(turn=consumes(turns))
    def end_a_turn(self, turn):
        if turn in self.open_turns:
            self.end(turn)

    def end(self, turn):
        scope, _ = self.open_turns.pop(turn)
        scope.close()

    @rule(prompt=prompts, index=near, groups=st.sets(st.integers(0, 3)))
    def commit_some_parts_out_of_order(self, prompt, index, groups):
        blocks = self.blocks(prompt)
        if blocks:
            names = [group.name for at, group in enumerate(self.bench.groups) if at in groups]
            block = blocks[index % len(blocks)]
            commit(self.cache, block, groups=names, features=consumed_by([block])[0])
            self.note(block, names, self.cache._fences.last)

    @rule(prompt=prompts, index=near)
    def commit_what_disagrees(self, prompt, index):
        blocks = self.blocks(prompt)
        block = blocks[index % len(blocks)] if blocks else None
        groups = {entry.group for entry in self.cache.entries() if self.is_of(entry, block)}
        groups = {group for group in groups if self.sound((block.name, group))}
        if not groups:
            return
        before = self.cache.status()["counters"]["disagreements"]
        assert commit(self.cache, block, groups=groups, spoil=True) == 0
        after = self.cache.status()["counters"]["disagreements"]
        fenced, _ = self.cache._holds.barred()
        keys = {(block.name, group) for group in groups}
        assert after == before + 1 or keys <= fenced
        assert not keys & self.cache.plan(blocks, limit=len(blocks)).usable.keys()  # I8

    @staticmethod
    def is_of(entry, block):
        return block is not None and entry.name == block.name.hex()

    @rule(
        prompt=prompts,
        index=near,
        item=st.none() | pictures,
        where=st.sampled_from(["here", "elsewhere", "by command"]),
    )
    def quarantine(self, prompt, index, item, where):
        blocks = self.blocks(prompt)
        names = [blocks[0].parent, *(block.name for block in blocks)] if blocks else []
        if item is not None or not names:
            name = feature_name_of(item or PICTURES[0])
            self.absent.add(name)
        else:
            name = names[index % len(names)]
        if where == "by command":
            with suppress(SetupError):  # nothing has that name: a root has no record
                self.by_command(name)
        else:
            with self.another() if where == "elsewhere" else nullcontext(self.cache) as other:
                fence = other.quarantine(name, Reason.BY_HAND, where)
            assert fence in self.known_now()
        if where != "here":
            self.others_took_what_is_barred()

    def by_command(self, name):
        bench = self.bench
        quarantine_in(
            bench.folder, name.hex(), "", ssd_bytes=bench.ssd_bytes, wall_clock=bench.wall
        )

    @contextmanager
    def another(self):
        other = self.bench.start()
        try:
            yield other
        finally:
            other.drain(60)
            other.close()

    def known_now(self):
        self.cache.plan((), limit=0)
        return self.cache._fences.known()

    def others_took_what_is_barred(self):
        # Another process knows no pins of this one, and may delete what is barred.
        self.known_now()
        for turn, (scope, keys) in self.open_turns.items():
            gone = {key for key in keys if not self.there(key)}
            assert not [key for key in gone if self.sound(key) and not self.lost(key)]
            self.open_turns[turn] = (scope, keys - gone)

    def lost(self, key):
        return record_key(*key) in self.damaged

    @rule(wanted=st.sets(pictures))
    def look_at_pictures(self, wanted):
        found = self.find(wanted)
        assert self.cache.drain(60)  # nothing is stored behind a fence that has no number yet
        for item in wanted:
            if feature_name_of(item) not in found:
                self.commit_features(item)
        if self.bench.feature_ram_bytes == ROOMY:
            assert self.find(wanted) == {feature_name_of(item) for item in wanted}

    @rule(item=pictures)
    def commit_features(self, item):
        name = feature_name_of(item)
        self.cache.commit_features(name, item, features_of(item))
        self.absent.discard(name)

    @rule(item=pictures)
    def commit_features_that_disagree(self, item):
        name = feature_name_of(item)
        if not self.find([item]):
            return
        before = self.cache.status()["counters"]["disagreements"]
        self.cache.commit_features(name, item, spoiled_features(features_of(item)))
        assert self.cache.status()["counters"]["disagreements"] == before + 1
        self.absent.add(name)
        assert not self.find([item])  # I8

    def find(self, items):
        wanted = {feature_name_of(item): item for item in items}
        found = self.cache.features(wanted, deadline_s=5)
        for name, features in found.items():
            made = features_of(wanted[name])
            assert [bytes(one.data) for one in features.components] == [
                bytes(one.data) for one in made.components
            ]  # I2
        assert not found.keys() & self.absent  # I8
        self.absent |= wanted.keys() - found.keys()
        return found.keys()

    # What happens to the store.

    @rule(which=near, at=near, bit=st.integers(0, 7))
    def flip_a_bit(self, which, at, bit):
        path = self.some_record(which)
        if path:
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 1 << bit
            path.write_bytes(data)

    @rule(which=near, at=near)
    def cut_a_file_short(self, which, at):
        path = self.some_record(which)
        if path:
            data = path.read_bytes()
            path.write_bytes(data[: at % len(data)])

    @rule(which=near)
    def delete_a_file(self, which):
        path = self.some_record(which)
        if path:
            path.unlink()

    @rule(first=near, second=near)
    def swap_two_files(self, first, second):
        one, two = self.some_record(first), self.some_record(second)
        if one and one != two:
            data = one.read_bytes()
            one.write_bytes(two.read_bytes())
            two.write_bytes(data)

    def some_record(self, which):
        records = [path for path in self.bench.records() if path.stat().st_size]
        if not records:
            return None
        path = records[which % len(records)]
        self.damaged.add(path.name.removesuffix(".rec"))
        return path

    @rule(seconds=st.sampled_from([1.0, 100.0]))
    def let_time_pass(self, seconds):
        self.bench.clock.pass_(seconds)
        self.bench.wall.pass_(seconds)

    @precondition(lambda self: not self.open_turns)
    @rule(
        ram=st.sampled_from(SMALL_RAM),
        ssd=st.sampled_from(SMALL_SSD),
        feature_ram=st.sampled_from(SMALL_RAM),
        feature_ssd=st.sampled_from(SMALL_SSD),
        lost=st.sampled_from(
            ["nothing", "inventory", "bytes of it", "secret", "queue", "a fence", "quarantine"]
        ),
        at=near,
    )
    def restart(self, ram, ssd, feature_ram, feature_ssd, lost, at):
        if lost == "queue":  # a process that ends without draining
            self.take_a_turn(([0, 1, 1, 0, 0, 1], 2))
            self.commit_features(PICTURES[0])
        self.cache.close()
        inventory = self.bench.folder / "inventory.sqlite"
        if lost == "inventory":
            inventory.unlink()
        fences = sorted(self.bench.folder.glob("fences/*/*.rec"))
        if lost == "a fence" and fences:
            fences[at % len(fences)].write_bytes(b"torn")
        if lost == "quarantine":
            shutil.rmtree(self.bench.folder / "quarantine", ignore_errors=True)
        if lost == "secret":
            (self.bench.folder / "secret").unlink()
        if lost == "bytes of it":
            data = bytearray(inventory.read_bytes())
            for index in range(16):
                data[(at + index * 257) % len(data)] ^= 0xFF
            inventory.write_bytes(data)
        self.bench.ram_bytes, self.bench.ssd_bytes = ram, ssd
        self.bench.feature_ram_bytes, self.bench.feature_ssd_bytes = feature_ram, feature_ssd
        self.cache = self.bench.start()
        assert all(path.exists() for path in fences)

    @rule(free=st.integers(1, 9_000))
    def evict_from_ram(self, free):
        self.cache._ram.evict(free)
        trees = {}
        for block, group, part in self.cache._ram.items():
            self.plant(trees, block.name, block.parent, block.start, block.end, group, part)
        self.check_nothing_dead(trees)

    @rule(free=st.integers(1, 50_000))
    def evict_from_ssd(self, free):
        assert self.cache.drain(60)
        self.cache._ssd.evict(free)
        for nodes in self.cache._ssd.inventory.trees(lambda _: False).values():
            self.check_nothing_dead(nodes)

    @rule(free=st.integers(1, 20_000))
    def evict_features_from_ssd(self, free):
        assert self.cache.drain(60)
        before, _ = self.cache._ssd.inventory.features.used()
        self.cache._ssd.evict_features(free)
        after, _ = self.cache._ssd.inventory.features.used()
        assert after <= max(before - free, 0)

    @staticmethod
    def plant(trees, name, parent, start, end, group, part):
        trees.setdefault(name, Node(parent, start, end)).parts[group] = part

    def check_nothing_dead(self, nodes):  # I13
        groups = self.bench.groups
        pinned = self.cache._holds.pinned_keys()
        needed = set()
        for name in nodes:
            path = [name]
            while nodes[path[0]].parent in nodes:
                path.insert(0, nodes[path[0]].parent)
            missing = [None] if nodes[path[0]].start else []
            path = missing + path
            ends = [nodes[one].end if one else nodes[path[1]].start for one in path]
            held = lambda group, block, path=path: (  # noqa: E731
                path[block] is not None and groups[group].name in nodes[path[block]].parts
            )
            if restorable([one.law for one in groups], ends, held, limit=len(path)) == len(path):
                needed |= {
                    (path[index], one.name)
                    for one in groups
                    for index in one.law.needs(ends, len(path))
                }
        for name, node in nodes.items():
            for group in node.parts:
                assert (name, group) in needed | pinned

    # What must hold.

    def check(self, plan, restored):
        check_restored(self.cache, plan, restored)  # I2
        assert all(self.sound((plan.blocks[index].name, one)) for one, index in restored.contents)
        assert restored.boundary <= plan.boundary <= plan.limit
        assert (restored.miss_reason is None) == (restored.boundary == plan.limit > 0)
        if restored.boundary < plan.boundary:
            # Whatever kept it from standing there is not offered again (I8). A boundary above may
            # stand without it, on what was committed since the plan.
            again = self.cache.plan(plan.blocks, limit=plan.boundary, features=plan.features)
            assert again.boundary < plan.boundary or self.recommitted(plan, restored)
        if plan in self.open_turns:
            scope, keys = self.open_turns[plan]
            self.open_turns[plan] = (scope, {key for key in keys if self.there(key)})

    def recommitted(self, plan, restored):
        # ``take_a_turn`` computes and commits anew what it could not restore.
        return plan not in self.open_turns

    def there(self, key):
        on_disk = self.cache._ssd.tier.head(record_key(*key), 1) is not None
        return on_disk or self.cache._ram.get(key) is not None

    @invariant()
    def nothing_behind_a_fence_is_offered(self):  # I8
        if not hasattr(self, "cache"):
            return
        assert self.cache.drain(60)
        for blocks in list(self.chains.values())[-4:]:
            plan = self.cache.plan(blocks, limit=len(blocks), features=consumed_by(blocks))
            assert all(map(self.sound, plan.usable))

    @invariant()
    def bytes_are_what_a_recount_says(self):  # I6
        if not hasattr(self, "cache"):
            return
        assert self.cache.drain(60)
        ram, ssd = self.cache._ram, self.cache._ssd
        recount = list(ram._tier.list())
        assert sum(size for _, size in recount) == ram.used_bytes <= max(ram.capacity, 0)
        assert len(recount) == ram.parts == len(ram.items())
        used, parts = ssd.inventory.used()
        rows = list(ssd.inventory.rows())
        assert (sum(row.nbytes for row in rows), len(rows)) == (used, parts)
        features_used, items = ssd.inventory.features.used()
        listed = list(ssd.inventory.features.rows())
        assert (sum(row.nbytes for row in listed), len(listed)) == (features_used, items)
        on_disk = dict(ssd.tier.list())
        indexed = {record_key(row.name, row.group): row.nbytes for row in rows}
        indexed |= {feature_key(row.name): row.nbytes for row in listed}
        assert on_disk.keys() <= indexed.keys()
        assert indexed.keys() - on_disk.keys() <= self.damaged
        for key, size in on_disk.items():
            assert size == indexed[key] or key in self.damaged
        aside, records = ssd.inventory.lineage.aside_used()
        lying = dict(ssd.quarantine.list())
        assert (sum(lying.values()), len(lying)) == (aside, records)
        assert aside <= ssd.quota.capacity // 16
        whole = used + features_used + aside
        assert whole <= ssd.quota.capacity or self.cache._holds.pinned_keys()
        assert features_used <= ssd.quota.feature_capacity
        recount = list(self.cache._features._ram._tier.list())
        shown = self.cache.status()["features"]["ram"]
        assert (len(recount), sum(size for _, size in recount)) == (shown["items"], shown["bytes"])
        assert shown["bytes"] <= shown["capacity"]

    @invariant()
    def pinned_parts_stay(self):  # I7
        if not hasattr(self, "cache"):
            return
        for _, keys in self.open_turns.values():
            for key in keys:
                assert self.there(key) or record_key(*key) in self.damaged


CacheMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, print_blob=True
)
TestCacheMachine = CacheMachine.TestCase
