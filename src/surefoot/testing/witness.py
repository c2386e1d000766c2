"""Everything that can be known of one answer: for asking whether two answers are the same bits.

The real turn runs over the real cache; a run is only looked at, between its prefill and its first
token, and after each token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from surefoot import identity
from surefoot.cache import Cache, open_cache
from surefoot.chat.request import TokensInput
from surefoot.engine import Sampled, Sampling
from surefoot.engine.hf import HfEngine
from surefoot.engine.hf.run import HfRun
from surefoot.prompt import Prompt
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.families import FAMILIES, model
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
        family = FAMILIES[name]
        torch.set_num_threads(THREADS)
        self.engine = HfEngine(
            model(name, dtype, family.attentions[0]),
            tokenizer_source="none",
            threads=THREADS,
            block_tokens=family.block_tokens,
            progress=lambda line: None,
            clock=ticking(),
        )
        self.run: WatchedRun | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def begin(self, prompt: Prompt, sampling: Sampling) -> WatchedRun:
        """Begin a run that is watched."""
        plain = self.engine.begin(prompt, sampling)
        self.run = WatchedRun(plain._model, plain._table, prompt, sampling, choose=plain._choose)
        return self.run

    def answer(self, cache: Cache, tokens: list[int], mode: CacheMode) -> dict[str, Any]:
        """Take one greedy turn and return all that can be known of it, as JSON values."""
        serving = Serving(self, FakeChat(), cache, ticking(), 1e9)  # type: ignore[arg-type]
        request = TurnRequest(
            id="witness",
            input=TokensInput(tuple(tokens)),
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
        }


@contextmanager
def opened(engine: WatchedEngine, store: Path, *, ram_bytes: int) -> Iterator[Cache]:
    """Open a store for the engine's model and close it with nothing left to write."""
    cache = open_cache(
        model=engine.engine.model,
        groups=engine.engine.groups,
        store=store,
        ram_bytes=ram_bytes,
        ssd_bytes=AMPLE,
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
