"""Everything that can be known of one answer: for asking whether two answers are the same bits.

The real turn runs over the real cache; a run is only looked at, between its prefill and its first
token, and after each token. How often the vision tower ran is counted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from surefoot import identity
from surefoot.cache import Cache, open_cache
from surefoot.chat.request import Input, TokensInput
from surefoot.engine import Sampled, Sampling
from surefoot.engine.hf import HfEngine
from surefoot.engine.hf.run import HfRun
from surefoot.prompt import MediaItem, Prompt
from surefoot.state import Features
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.families import family, model
from surefoot.testing.live_state import live_state
from surefoot.turn import CacheMode, Done, Ledger, Serving, TurnRequest, turn

ANSWER_TOKENS = 8
THREADS = 1  # tiny products: waking a second thread costs more than it computes
AMPLE = 1 << 34  # bytes; nothing is evicted here


class WatchedRun(HfRun):
    """A run that notes its logits before every token, and all of its state before the first."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tokens: list[int] = []
        self.logits: list[torch.Tensor] = []
        self.state: dict[Any, Any] = {}

    def sample(self) -> Sampled:
        """Sample, and look."""
        assert self._logits is not None
        if not self.logits:
            self.state = live_state(self._cache)
        self.logits.append(self._logits.clone())
        sampled = super().sample()
        self.tokens.append(sampled.token)
        return sampled


class WatchedEngine:
    """A family's engine whose last run stays in hand."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        subject = family(name)
        torch.set_num_threads(THREADS)
        self.engine = HfEngine(
            model(name, dtype, subject.attentions[0]),
            tokenizer_source="none",
            threads=THREADS,
            block_tokens=subject.block_tokens,
            progress=lambda line: None,
            clock=ticking(),
        )
        self.run: WatchedRun | None = None
        self.encoded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def encode(self, item: MediaItem) -> Features:
        """Encode, and count."""
        self.encoded += 1
        return self.engine.encode(item)

    def begin(
        self, prompt: Prompt, sampling: Sampling, media: Sequence[MediaItem] = ()
    ) -> WatchedRun:
        """Begin a run that is watched."""
        plain = self.engine.begin(prompt, sampling, media)
        self.run = WatchedRun(
            plain._model,
            plain._table,
            prompt,
            sampling,
            choose=plain._choose,
            vision=self.engine._vision,
            media=media,
        )
        return self.run

    def answer(
        self,
        cache: Cache,
        prompt: list[int] | Prompt,
        mode: CacheMode,
        media: Sequence[MediaItem] = (),
    ) -> dict[str, Any]:
        """Take one greedy turn and return all that can be known of it, as JSON values.

        ``media`` are the items of the prompt's spans, in their order.
        """
        given = prompt if isinstance(prompt, Prompt) else Prompt.of(prompt)
        serving = Serving(self, GivenChat(given, media), cache, ticking(), 1e9)  # type: ignore[arg-type]
        encoded = self.encoded
        request = TurnRequest(
            id="witness",
            input=TokensInput(tuple(given.tokens())),
            sampling=Sampling(temperature=0.0),
            max_tokens=ANSWER_TOKENS,
            ignore_eos=True,
            mode=mode,
        )
        *_, done = turn(Ledger(request, serving, 0.0))
        assert isinstance(done, Done)
        assert self.run is not None
        receipt = done.receipt
        return {
            "tokens": self.run.tokens,
            "logits": [_digest(row) for row in self.run.logits],
            "state": {f"{at}": _digest(value) for at, value in self.run.state.items()},
            "state_digest": receipt.state_digest,
            "restored": receipt.restored_tokens,
            "sources": dict(receipt.sources),
            "feature_hits": [one.feature_hit for one in receipt.media],
            "encoded": self.encoded - encoded,
        }


class GivenChat(FakeChat):
    """A chat room whose prompt is given beforehand, with the items of its spans."""

    def __init__(self, prompt: Prompt, media: Sequence[MediaItem]) -> None:
        self._prompt = prompt
        self._media = media

    def media(self, request: Input) -> Iterator[MediaItem]:
        """Yield the items that were given."""
        yield from self._media

    def prompt(self, request: Input, media: Sequence[MediaItem] = ()) -> Prompt:
        """Return the prompt that was given."""
        return self._prompt


@contextmanager
def opened(engine: WatchedEngine, store: Path, *, ram_bytes: int) -> Iterator[Cache]:
    """Open a store for the engine's model and close it with nothing left to write."""
    cache = open_cache(
        model=engine.engine.model,
        groups=engine.engine.groups,
        feature_schema=engine.engine.features,
        store=store,
        ram_bytes=ram_bytes,
        ssd_bytes=AMPLE,
        feature_ram_bytes=ram_bytes,
        feature_ssd_bytes=AMPLE,
        free_floor_bytes=0,
        io_threads=2,
        queue_bytes=AMPLE,
        clock=ticking(),
        wall_clock=ticking(),
    )
    try:
        yield cache
        assert cache.drain(60)
    finally:
        cache.close()


def ticking() -> Any:
    """Return a clock that moves by a microsecond whenever it is read."""
    ticks = iter(range(1, 1 << 60))
    return lambda: next(ticks) * 1e-6


def _digest(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.detach().contiguous().cpu()
    raw = flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    named = [("value", str(value.dtype), tuple(value.shape), raw)]
    return identity.tensors_digest(named).hex()
