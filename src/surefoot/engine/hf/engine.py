"""The engine on transformers: a loaded model, its name, and the runs it starts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from surefoot.engine import Sampling
from surefoot.engine.hf.fingerprint import fingerprint
from surefoot.engine.hf.numerics import numerics
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.sampling import choose
from surefoot.engine.hf.table import StateTable, Unsupported, inspect
from surefoot.engine.hf.vision import vision_of
from surefoot.engine.hf.weights import weights_digest
from surefoot.identity import ModelName, model_name
from surefoot.prompt import MediaItem, Prompt
from surefoot.state import Features, FeatureSchema, Group

NUMERICS = "numerics: "  # how an ingredient that is one of the numerics begins
UNBOUNDED_CONTEXT = 1 << 20  # tokens, for a model that states no limit (a purely recurrent one)


class HfEngine:
    """A language model of transformers, with or without a vision tower, as an ``Engine``.

    ``tokenizer_source`` is the folder or hub id that the model's tokenizer is loaded from.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer_source: str,
        threads: int,
        block_tokens: int,
        progress: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """Name ``model`` and find out how, and whether, its state can be kept.

        Runs the model on a few blocks; it must be on its device, in evaluation mode.

        Raises:
            EngineError: the model cannot be run.
        """
        self.tokenizer_source = tokenizer_source
        self._loaded = model
        self._threads = threads
        self._block_tokens = block_tokens
        text = model.config.get_text_config(decoder=True)
        self._context_tokens = getattr(text, "max_position_embeddings", None) or UNBOUNDED_CONTEXT
        progress("naming the weights")
        weights = weights_digest(model)
        progress("checking that restored state computes the same bits")
        self._vision = vision_of(model)
        found = inspect(model, block_tokens=block_tokens, atomic_spans=self.atomic_spans)
        self._table = found if isinstance(found, StateTable) else None
        self._unsupported = found.reason if isinstance(found, Unsupported) else None
        start_up = fingerprint(
            model,
            self._table,
            vision=self._vision,
            block_tokens=block_tokens,
            context_tokens=self._context_tokens,
            clock=clock,
        )
        if start_up.mismatch is not None:
            self._table = None
            self._unsupported = f"a restore did not reproduce {start_up.mismatch}"
        if start_up.unsteady is not None:
            self._table = None
            self._unsupported = f"the vision tower did not repeat {start_up.unsteady}"
        self._prefill_tokens_per_s = start_up.prefill_tokens_per_s
        config = canonical_config(model.config.to_dict())
        facts = numerics(model, threads=threads, block_tokens=block_tokens, vision=self._vision)
        self._model = model_name(
            weights=weights, config=config, numerics=facts, fingerprint=start_up.digest
        )
        self._ingredients = {
            "weights": weights.hex(),
            "config": config,
            **{f"{NUMERICS}{fact}": value for fact, value in facts.items()},
            "fingerprint": start_up.digest.hex(),
        }

    @property
    def model(self) -> ModelName:
        """The name of the weights and of what this process computes with them."""
        return self._model

    @property
    def ingredients(self) -> Mapping[str, str]:
        """What the model's name was made of, as text to keep beside it; digests are hex."""
        return self._ingredients

    @property
    def groups(self) -> tuple[Group, ...]:
        """The model's state groups; empty when it is served without a cache."""
        return self._table.groups if self._table is not None else ()

    @property
    def block_tokens(self) -> int:
        """The grid's step, in tokens."""
        return self._block_tokens

    @property
    def atomic_spans(self) -> bool:
        """Whether media spans must not be cut: whether a token of an image sees later ones."""
        return self._vision is not None and self._vision.tower.atomic_spans

    @property
    def context_tokens(self) -> int:
        """The most tokens a sequence may hold, prompt and answer together."""
        return self._context_tokens

    @property
    def unsupported(self) -> str | None:
        """Why this model is served without a cache; None when it is served with one."""
        return self._unsupported

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        sources = (
            self._loaded.generation_config,
            self._loaded.config.get_text_config(decoder=True),
        )
        return frozenset(token for source in sources for token in _eos(source))

    @property
    def prefill_tokens_per_s(self) -> float:
        """Measured at start-up; a restore may take no longer than computing would."""
        return self._prefill_tokens_per_s

    @property
    def features(self) -> FeatureSchema | None:
        """What the vision tower makes of an item; None for a model that takes no media."""
        return self._vision.schema if self._vision is not None else None

    def encode(self, item: MediaItem) -> Features:
        """Run the vision tower on one item, alone; the result is owned by the caller.

        Raises:
            EngineError: the tower failed.
        """
        assert self._vision is not None, "this model takes text only"
        torch.set_num_threads(self._threads)
        return self._vision.encode(item)

    def begin(self, prompt: Prompt, sampling: Sampling, media: Sequence[MediaItem] = ()) -> HfRun:
        """Start a sequence at position 0; nothing is computed yet."""
        # Math libraries keep the count per thread, and the engine's is not the one that loaded.
        torch.set_num_threads(self._threads)
        return HfRun(
            self._loaded,
            self._table,
            prompt,
            sampling,
            choose=choose,
            vision=self._vision,
            media=media,
        )


def canonical_config(config: Mapping[str, Any]) -> str:
    """Return a configuration as JSON without what does not decide bits: paths and versions."""
    return json.dumps(_decisive(config), sort_keys=True, ensure_ascii=True, default=str)


def _decisive(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            str(key): _decisive(one)
            for key, one in value.items()
            if not str(key).startswith("_") and key != "transformers_version"
        }
    if isinstance(value, list | tuple):
        return [_decisive(one) for one in value]
    return value


def _eos(config: Any) -> Iterator[int]:
    ids = getattr(config, "eos_token_id", None)
    if isinstance(ids, int):
        yield ids
    elif ids is not None:
        yield from ids
