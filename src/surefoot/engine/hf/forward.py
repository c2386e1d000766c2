"""The one forward call: same arguments, same shapes, batch 1, one row of logits (I5).

Positions are always passed where the family accepts them, because several families otherwise
remember something about the last call on the model itself. How many rows of logits are asked for
changes their bits, so it is always one.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch

LOGITS_TO_KEEP = 1


class Forward:
    """A model's forward call on a run of tokens."""

    def __init__(self, model: Any) -> None:
        """Note which of the fixed arguments this family's ``forward`` takes."""
        self._model = model
        accepted = signature(model.forward).parameters
        self.accepts_cache = "cache" in accepted
        self._positions = "position_ids" in accepted
        self._fixed = {"logits_to_keep": LOGITS_TO_KEEP} if "logits_to_keep" in accepted else {}

    def __call__(
        self, ids: torch.Tensor, start: int, cache: Any, sight: Mapping[str, Any] | None = None
    ) -> torch.Tensor:
        """Consume ``ids`` [1, tokens] at position ``start`` and return the last logits [vocab].

        Changes ``cache``. Must run under ``torch.inference_mode``.

        Args:
            ids: token ids.
            start: how many tokens ``cache`` has consumed.
            cache: the sequence's live state.
            sight: what ``Sight.arguments`` says of these tokens; None for a model of text.
        """
        more: dict[str, Any] = dict(self._fixed)
        if self._positions:
            end = start + ids.shape[1]
            more["position_ids"] = torch.arange(start, end, device=ids.device)[None]
        more |= sight or {}
        output = self._model(input_ids=ids, cache=cache, use_cache=True, **more)
        logits: torch.Tensor = output.logits[0, -1]
        return logits
