"""What the broken server keeps: a RAM tier of blocks, a disk tier of records, and their keys.

A record is one conversation's blocks, with the pooled index that it ended with. A key stands for a
chain (tenant, tokens, pictures) up to a block's end; on disk it says which record holds the state
and at which of its blocks, the newest writer first. RAM holds single blocks in slots. Unbroken,
equal keys mean equal state, and a restore takes of a record what the boundary needs, no more.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_keys import contents_told, root_told, salt_told
from surefoot.testing.broken_prompt import Picture, Prompt, Token
from surefoot.testing.broken_state import BLANK, STRIDE, Recurrent, Row, State, pooled_row

LOST_TOKENS = 64
LOST_BEYOND = 2000  # tokens
DONOR_BEYOND = 1024  # tokens
Tenant = tuple[str | None, str | None]  # API key or none, salt or none
Key = int


@dataclass(frozen=True, slots=True)
class Block:
    """What a state gained over one block, and the recurrent state at its end."""

    rows: tuple[Row, ...]
    pooled: tuple[Row, ...]
    snapshot: Recurrent


@dataclass(frozen=True, slots=True)
class Record:
    """One conversation on disk.

    Attributes:
        blocks: its whole blocks.
        pooled: the index that it ended with; its tail's rows too, which no block holds.
        tenant: whose it is.
        tokens: of the blocks.
        ends: of the blocks, in tokens.
    """

    blocks: tuple[Block, ...]
    pooled: tuple[Row, ...]
    tenant: Tenant
    tokens: tuple[Token, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rung:
    """One whole block of a prompt: its end in tokens, and its keys in both tiers."""

    end: int
    ram: Key
    disk: Key


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a prompt is taken up: so many tokens of it need no computing.

    Attributes:
        tokens: of the prompt that the state stands for.
        rungs: the blocks restored, from the first.
        record: restored instead of the rungs, up to its block ``blocks``.
    """

    tokens: int
    rungs: tuple[Rung, ...] = ()
    record: Record | None = None
    blocks: int = 0


class Ram:
    """Blocks in a fixed number of slots; the slot that was touched longest ago is filled anew."""

    def __init__(self, slots: int, outlives: Callable[[Key], bool]) -> None:
        self._slots = slots
        self._outlives = outlives  # its block
        self._blocks: OrderedDict[int, tuple[Key, Block]] = OrderedDict()
        self._places: dict[Key, int] = {}

    def get(self, key: Key) -> Block | None:
        """Return the block that a key's slot holds."""
        place = self._places.get(key)
        if place is None:
            return None
        self._blocks.move_to_end(place)
        return self._blocks[place][1]

    def put(self, key: Key, block: Block) -> None:
        """Hold a block, in the slot of the one that was touched longest ago if none is free."""
        if self.get(key) is not None:
            return
        place = len(self._blocks)
        if place >= self._slots:
            place, (old, _) = self._blocks.popitem(last=False)
            if not self._outlives(old):
                del self._places[old]
        self._blocks[place] = (key, block)
        self._places[key] = place

    def replace(self, key: Key, block: Block) -> None:
        """Hold a block in place of the one of this key."""
        self.put(key, block)
        self._blocks[self._places[key]] = (key, block)


@dataclass(slots=True)
class Disk:
    """All records ever written, and which key is where."""

    records: dict[int, Record] = field(default_factory=dict)
    places: dict[Key, tuple[int, int]] = field(default_factory=dict)  # record, block in it
    next_number: int = 0

    def get(self, key: Key) -> tuple[Record, Block] | None:
        """Return the record that a key names, and the block at its place or the last before."""
        if key not in self.places:
            return None
        number, place = self.places[key]
        record = self.records[number]
        return record, record.blocks[min(place, len(record.blocks) - 1)]

    def put(self, keys: Sequence[Key], record: Record) -> None:
        """Write a record and have every key name it; what holds the same chain is left as it is."""
        held = self.places.get(keys[-1])
        if held is not None and len(self.records[held[0]].blocks) == len(keys):
            return
        self.write(keys, record)

    def write(self, keys: Sequence[Key], record: Record) -> None:
        """Write a record and have every key name it, whatever is held."""
        self.records[self.next_number] = record
        self.places |= {key: (self.next_number, place) for place, key in enumerate(keys)}
        self.next_number += 1

    def number_anew(self) -> None:
        """Give every record the number of the one before; the keys keep what they hold."""
        numbers, records = [*self.records], [*self.records.values()]
        self.records = dict(zip(numbers, [*records[1:], *records[:1]], strict=True))


class Store:
    """Plans, restores and commits, with at most one fault."""

    def __init__(self, behaviour: Behaviour, fault: Fault | None) -> None:
        self._behaviour = behaviour
        self._fault = fault
        self._names: dict[Hashable, Key] = {}
        self._numbers: dict[Picture, int] = {}
        self._chats: dict[Key, set[Key]] = {}  # by a block's key, the prompts that hold it
        self._disk = Disk()
        self._ram = self._fresh_ram()

    def restart(self) -> None:
        """Forget what RAM held."""
        self._ram = self._fresh_ram()
        self._numbers.clear()
        if self._fault is Fault.STALE_AFTER_RESTART:
            self._disk.number_anew()

    def rungs(self, prompt: Prompt, tenant: Tenant) -> tuple[Rung, ...]:
        """Return the whole blocks of a prompt with their keys."""
        (key, salt), fault = tenant, self._fault
        start, root = root_told(prompt, fault)
        on_disk = self._name(("disk", key, salt_told(salt, fault, on_disk=True), root))
        in_ram = self._name(("ram", key, salt_told(salt, fault, on_disk=False), root))
        content = contents_told(prompt, fault, self._numbers)
        found = []
        block = self._behaviour.block_tokens
        for end in range(start + block, len(prompt.tokens) + 1, block):
            told = tuple(content[start:end])
            on_disk, in_ram = self._name((on_disk, told)), self._name((in_ram, told))
            found.append(Rung(end, in_ram, on_disk))
            start = end
        return tuple(found)

    def plan(self, prompt: Prompt, tenant: Tenant, rungs: Sequence[Rung]) -> Plan:
        """Return where to take up a prompt: the greatest boundary held, below the last token."""
        limit = len(prompt.tokens) - 1
        if self._fault is Fault.LAST_TOKEN_TWICE:
            limit += 1
        held: list[Rung] = []
        for rung in rungs:
            if rung.end > limit or self._block(rung) is None:
                break
            held.append(rung)
        plan = Plan(held[-1].end, tuple(held)) if held else Plan(0)
        if self._fault is Fault.REMOVED_IMAGE_KEPT:
            return max(plan, self._with_image(prompt, tenant), key=lambda one: one.tokens)
        return plan

    def restore(self, plan: Plan, prompt: Prompt, tenant: Tenant) -> tuple[State, list[Block]]:
        """Return a state of its own that stands where the plan says, and the blocks in it."""
        if plan.record is not None:
            blocks = [*plan.record.blocks[: plan.blocks]]
        elif self._fault is Fault.STALE_AFTER_RESTART:
            blocks = self._named_blocks(plan.rungs)
        else:
            blocks = [self._must_hold(rung) for rung in plan.rungs]
        if self._fault is Fault.WINDOW_LOST and len(prompt.tokens) > LOST_BEYOND:
            blocks = _without_first(blocks)
        stands = plan.record.ends[plan.blocks - 1] if plan.record else plan.tokens
        state = State(position=stands)
        for block in blocks:
            state.rows += block.rows
            state.pooled += block.pooled
        if blocks:
            state.recurrent = blocks[-1].snapshot
        if plan.rungs and self._fault is Fault.WRONG_BOUNDARY:
            state.recurrent = blocks[-2].snapshot if len(blocks) > 1 else Recurrent()
        donor = self._donor(plan, prompt, tenant)
        if donor is not None:
            state.pooled = [*donor.pooled]
        return state, blocks

    def commit(
        self,
        prompt: Prompt,
        tenant: Tenant,
        rungs: Sequence[Rung],
        blocks: Sequence[Block],
        state: State,
    ) -> None:
        """Hold a prompt's whole blocks in both tiers."""
        if not blocks:
            return
        record = _record(prompt, tenant, rungs, blocks, state)
        self._disk.put([rung.disk for rung in rungs], record)
        chat = self._name((rungs[-1].ram, prompt.tokens[rungs[-1].end :]))
        for rung, block in zip(rungs, blocks, strict=True):
            self._chats.setdefault(rung.ram, set()).add(chat)
            self._ram.put(rung.ram, block)

    def commit_half(self, prompt: Prompt, tenant: Tenant, rungs: Sequence[Rung]) -> None:
        """Hold a state whose second half was never filled under the whole prompt's keys."""
        blocks: list[Block] = []
        half = len(rungs) // 2
        for place, (start, end) in enumerate(_spans(rungs)):
            held = self._block(rungs[place]) if place < half else None
            last = blocks[-1].snapshot if blocks else Recurrent()
            strides = end // STRIDE - start // STRIDE
            blank = Block((BLANK,) * (end - start), (BLANK,) * strides, last)
            blocks.append(held or blank)
        if not blocks:
            return
        pooled = [row for block in blocks for row in block.pooled]
        record = _record(prompt, tenant, rungs, blocks, State(pooled=pooled))
        self._disk.write([rung.disk for rung in rungs], record)
        for rung, block in zip(rungs, blocks, strict=True):
            self._ram.replace(rung.ram, block)

    def overwrite_last(self, prompt: Prompt, tenant: Tenant, rows: Sequence[Row]) -> None:
        """Have the last whole block of a prompt hold other rows, as far as these go."""
        rungs = self.rungs(prompt, tenant)
        blocks = [self._must_hold(rung) for rung in rungs]
        if not blocks:
            return
        last = blocks[-1]
        written = (*rows[: len(last.rows)], *last.rows[len(rows) :])
        strides = range(0, len(written) - STRIDE + 1, STRIDE)
        pooled = tuple(pooled_row(written[start : start + STRIDE]) for start in strides)
        blocks[-1] = Block(written, pooled, last.snapshot)
        index = State(pooled=[row for block in blocks for row in block.pooled])
        record = _record(prompt, tenant, rungs, blocks, index)
        self._disk.write([rung.disk for rung in rungs], record)
        self._ram.replace(rungs[-1].ram, blocks[-1])

    def _fresh_ram(self) -> Ram:
        slots = max(1, self._behaviour.ram_tokens // self._behaviour.block_tokens)
        return Ram(slots, self._outlives)

    def _outlives(self, key: Key) -> bool:
        """Return whether a block's key stays when the block is evicted."""
        if self._fault is Fault.EVICTED_WHILE_SHARED:
            return len(self._chats[key]) > 1
        return self._fault is Fault.EVICTED_MIXUP

    def _name(self, what: Hashable) -> Key:
        """Return the number of a chain: no two have the same, and nothing is hashed away."""
        return self._names.setdefault(what, len(self._names))

    def _block(self, rung: Rung) -> Block | None:
        held = self._ram.get(rung.ram)
        stored = self._disk.get(rung.disk)
        if held is None:
            return None if stored is None else stored[1]
        if self._fault in (Fault.EVICTED_MIXUP, Fault.EVICTED_WHILE_SHARED):
            # Snapshots live apart from the slots: they are still this chain's.
            assert stored is not None, "the disk holds all"
            return replace(held, snapshot=stored[1].snapshot)
        return held

    def _must_hold(self, rung: Rung) -> Block:
        block = self._block(rung)
        assert block is not None, "planned a moment ago, and nothing was evicted since"
        return block

    def _named_blocks(self, rungs: Sequence[Rung]) -> list[Block]:
        """Return the chain of the record that the last key names, or, unless RAM has all, ours."""
        in_ram = [self._ram.get(rung.ram) for rung in rungs]
        if all(block is not None for block in in_ram) or not rungs:
            return [block for block in in_ram if block is not None]
        held = self._disk.get(rungs[-1].disk)
        assert held is not None, "the disk holds all"
        blocks = [*held[0].blocks[: len(rungs)]]
        nothing = Block((), (), blocks[-1].snapshot)
        return blocks + [nothing] * (len(rungs) - len(blocks))

    def _donor(self, plan: Plan, prompt: Prompt, tenant: Tenant) -> Record | None:
        """Return the record whose whole index a restore takes, None where it takes the blocks'."""
        if not plan.rungs:
            return None
        if self._fault is Fault.REWOUND:
            count = len(prompt.tokens)
            longer = (
                record
                for record in reversed(self._disk.records.values())
                if record.tenant == tenant and len(record.tokens) > count
            )
            return next((one for one in longer if one.tokens[:count] == prompt.tokens), None)
        long = len(prompt.tokens) > DONOR_BEYOND
        beyond = self._fault is Fault.DONOR_LENGTH_BEYOND_1024 and long
        if self._fault is not Fault.DONOR_LENGTH and not beyond:
            return None
        held = self._disk.get(plan.rungs[-1].disk)
        assert held is not None, "the disk holds all"
        return held[0]

    def _with_image(self, prompt: Prompt, tenant: Tenant) -> Plan:
        """Return the longest match with a record whose pictures are looked past."""
        best = Plan(0)
        if len(prompt.bare) != len(prompt.tokens):
            return best
        for record in self._disk.records.values():
            if record.tenant != tenant:
                continue
            bare = seen = 0
            for place, end in enumerate(record.ends, 1):
                block = record.tokens[record.ends[place - 2] if place > 1 else 0 : end]
                told = tuple(token for token in block if isinstance(token, str))
                seen += len(block) - len(told)
                if prompt.tokens[bare : bare + len(told)] != told:
                    break
                bare += len(told)
                if seen and best.tokens < bare < len(prompt.tokens):
                    best = Plan(bare, record=record, blocks=place)
        return best


def _spans(rungs: Sequence[Rung]) -> list[tuple[int, int]]:
    ends = [rung.end for rung in rungs]
    return [*zip([0, *ends[:-1]], ends, strict=True)]


def _record(
    prompt: Prompt,
    tenant: Tenant,
    rungs: Sequence[Rung],
    blocks: Sequence[Block],
    state: State,
) -> Record:
    ends = tuple(rung.end for rung in rungs)
    tokens = prompt.tokens[: ends[-1]]
    return Record(tuple(blocks), tuple(state.pooled), tenant, tokens, ends)


def _without_first(blocks: Sequence[Block]) -> list[Block]:
    """Blank the rows of the first tokens, and what the index held of them."""
    found, rows, pooled = [], LOST_TOKENS, LOST_TOKENS // STRIDE
    for block in blocks:
        lost, gone = min(rows, len(block.rows)), min(pooled, len(block.pooled))
        blank = replace(
            block,
            rows=(BLANK,) * lost + block.rows[lost:],
            pooled=(BLANK,) * gone + block.pooled[gone:],
        )
        found.append(blank)
        rows, pooled = rows - lost, pooled - gone
    return found
