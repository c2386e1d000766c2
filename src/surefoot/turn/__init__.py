"""One turn: request, prompt, names, plan, restore, prefill, commit, decode, receipt.

``answer.py`` is the flow, top to bottom; ``request.py`` is what goes in and what comes out;
``ledger.py`` is the running account that becomes the receipt.
"""

from surefoot.turn.answer import Steps, idle, turn
from surefoot.turn.ledger import Ledger, Serving
from surefoot.turn.request import (
    CacheMode,
    Delta,
    Done,
    Event,
    Failed,
    TokenText,
    TurnRequest,
    Unit,
)

__all__ = [
    "CacheMode",
    "Delta",
    "Done",
    "Event",
    "Failed",
    "Ledger",
    "Serving",
    "Steps",
    "TokenText",
    "TurnRequest",
    "Unit",
    "idle",
    "turn",
]
