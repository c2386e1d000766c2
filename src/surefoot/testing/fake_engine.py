"""An engine without a model: its state is small, exact and unforgiving.

Three groups, one per kind of law. Every generated token is a function of every row, of the window
and of the snapshot, so a restore that installs one wrong byte, one row too many or another prompt's
state gives other tokens. A token of a media span is consumed as its row of the item's features, so
another item's features, or another row of them, show as well. Arithmetic is a 64-bit mix, not a
digest: nothing here names anything.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.engine import Placed, Run, Sampled, Sampling
from surefoot.identity import ModelName
from surefoot.laws import RecurrentSnapshot, SlidingWindow, TokenRows
from surefoot.prompt import MediaItem, MediaName, Prompt, grid
from surefoot.state import (
    ROWS,
    Component,
    ComponentSchema,
    Features,
    FeatureSchema,
    Group,
    Part,
    by_name,
)

MODEL = ModelName(b"f" * 32)
ROW_BYTES = 8
KEEP = 5
GROUPS = (
    Group("rows-0", TokenRows(), (ComponentSchema("rows", "uint8", (ROWS, ROW_BYTES)),)),
    Group("window-0", SlidingWindow(KEEP), (ComponentSchema("rows", "uint8", (ROWS, ROW_BYTES)),)),
    Group("snapshot-0", RecurrentSnapshot(), (ComponentSchema("state", "uint8", (ROW_BYTES,)),)),
)
FEATURES = FeatureSchema((ComponentSchema("features", "uint8", (ROWS, ROW_BYTES)),))


@dataclass(slots=True)
class FakeEngine:
    """Keeps the engine's contract over integers; ``on_unit`` sees every unit before it runs."""

    model: ModelName = MODEL
    groups: tuple[Group, ...] = GROUPS
    block_tokens: int = 4
    atomic_spans: bool = False
    context_tokens: int = 512
    unsupported: str | None = None
    stop_tokens: frozenset[int] = frozenset({0})
    prefill_tokens_per_s: float = 1000.0
    vocabulary: int = 256
    on_unit: Callable[[str, int, int], None] = lambda kind, start, end: None
    open_runs: int = 0
    computed: list[tuple[int, int]] = field(default_factory=list)
    features: FeatureSchema | None = FEATURES
    encoded: list[MediaName] = field(default_factory=list)
    ingredients: Mapping[str, str] = field(default_factory=lambda: {"weights": "none: a fake"})

    def encode(self, item: MediaItem) -> Features:
        """Mix an item's grid and bytes into one row per token."""
        self.on_unit("encode", 0, item.tokens)
        self.encoded.append(item.name)
        mixed = 3
        for value in (*item.shape, *item.grid, *item.data):
            mixed = _mix(mixed, value)
        rows = [_mix(mixed, row) for row in range(item.tokens)]
        return Features((_packed(FEATURES.components[0], rows),))

    def begin(self, prompt: Prompt, sampling: Sampling, media: Sequence[MediaItem] = ()) -> Run:
        """Start a run at position 0."""
        for span, item in zip(prompt.media, media, strict=False):
            assert span.media == item.name, span
            assert span.length == item.tokens or span.end == len(prompt), span
        assert len(prompt.media) <= len(media), prompt.media
        self.open_runs += 1
        return FakeRun(self, prompt, sampling, media)


class FakeRun:
    """One sequence of the fake engine."""

    def __init__(
        self,
        engine: FakeEngine,
        prompt: Prompt,
        sampling: Sampling,
        media: Sequence[MediaItem],
    ) -> None:
        self._engine = engine
        self._prompt = prompt
        self._sampling = sampling
        self._grid = grid(prompt, engine.block_tokens, atomic=engine.atomic_spans)
        self._media = {item.name: item for item in media}
        self._features: dict[MediaName, list[int]] = {}
        self._rows: list[int] = []
        self._window: list[int] = []
        self._snapshot = 1
        self._position = 0
        self._closed = False

    @property
    def position(self) -> int:
        """Tokens consumed so far."""
        return self._position

    def install(self, boundary: int, parts: Sequence[Placed]) -> None:
        """Stand at ``boundary``; lengths are derived from it, never from the parts."""
        assert self._position == 0, self._position
        groups = by_name(self._engine.groups)
        rows: list[int] = []
        window: list[int] = []
        snapshot = 1
        for placed in sorted(parts, key=lambda one: one.start):
            problem = groups[placed.part.group].mismatch(placed.part, placed.start, placed.end)
            if problem:
                raise ValueError(problem)
            values = _unpack(bytes(placed.part.components[0].data))
            if placed.part.group == "rows-0":
                rows += values
            elif placed.part.group == "window-0":
                window += values
            elif placed.end == boundary:
                (snapshot,) = values
        if len(rows) != boundary and "rows-0" in groups:
            raise ValueError(f"{len(rows)} rows where {boundary} belong")
        self._rows, self._window, self._snapshot = rows, window[-min(boundary, KEEP) :], snapshot
        self._position = boundary

    def supply(self, media: MediaName, features: Features) -> None:
        """Take an item's features."""
        assert media not in self._features, "supplied twice"
        problem = FEATURES.mismatch(features, self._media[media].tokens)
        if problem:
            raise ValueError(problem)
        self._features[media] = _unpack(bytes(features.components[0].data))

    def prefill(self, end: int) -> None:
        """Consume prompt tokens ``[position, end)``."""
        start = self._position
        self._engine.on_unit("prefill", start, end)
        self._engine.computed.append((start, end))
        assert start < end <= len(self._prompt), (start, end)
        assert end == len(self._prompt) or end in self._grid, end
        for token in self._prompt.tokens(start, end):
            self._consume(self._value(token))

    def cut(self, start: int, groups: Collection[str]) -> tuple[Part, ...]:
        """Copy out the parts of the block that ends here."""
        rows = {
            "rows-0": self._rows[start:],
            "window-0": self._window[-min(self._position - start, KEEP) :],
            "snapshot-0": [self._snapshot],
        }
        return tuple(
            Part(group.name, (_component(group, rows[group.name]),))
            for group in self._engine.groups
            if group.name in groups
        )

    def sample(self) -> Sampled:
        """Choose a token that depends on all of the state."""
        mixed = self._snapshot
        for value in (*self._rows, *self._window, self._position):
            mixed = _mix(mixed, value)
        token = (mixed >> 17) % self._engine.vocabulary
        if self._sampling.top_logprobs is None:
            return Sampled(token)
        return Sampled(token, -0.5, ((token, -0.5),)[: self._sampling.top_logprobs])

    def feed(self, token: int) -> None:
        """Consume one generated token."""
        self._engine.on_unit("decode", self._position, self._position + 1)
        self._consume(token)

    def close(self) -> None:
        """Free the run."""
        assert not self._closed, "closed twice"
        self._closed = True
        self._engine.open_runs -= 1

    def _value(self, token: int) -> int:
        """Return what is consumed here: the token, or its row of a media item's features."""
        for span in self._prompt.media:
            if span.start <= self._position < span.end:
                return self._features[span.media][self._position - span.start]
        return token

    def _consume(self, value: int) -> None:
        row = _mix(value, self._position)
        self._rows.append(row)
        self._window = [*self._window, _mix(row, 7)][-KEEP:]
        self._snapshot = _mix(self._snapshot, row)
        self._position += 1


def _mix(left: int, right: int) -> int:
    value = (left * 6364136223846793005 + right * 1442695040888963407 + 1013904223) % 2**64
    return value ^ (value >> 29)


def _component(group: Group, values: list[int]) -> Component:
    return _packed(group.schema[0], values)


def _packed(schema: ComponentSchema, values: list[int]) -> Component:
    data = b"".join(value.to_bytes(ROW_BYTES, "little") for value in values)
    return Component(schema.name, schema.dtype, schema.shape_for(len(values)), data)


def _unpack(data: bytes) -> list[int]:
    return [
        int.from_bytes(data[at : at + ROW_BYTES], "little") for at in range(0, len(data), ROW_BYTES)
    ]
