"""One turn: request, prompt, names, plan, restore, prefill, commit, decode, receipt.

``answer.py`` is the flow, top to bottom; ``request.py`` is what goes in and what comes out;
``ledger.py`` is the running account that becomes the receipt. Beside the flow: ``audit.py``
computes anew what is stored, and compares; ``audit_share.py`` says which chain is next, and when.
"""

from surefoot.turn.answer import Steps, idle, turn
from surefoot.turn.ledger import Ledger, Serving
from surefoot.turn.request import (
    CacheMode,
    Delta,
    Done,
    Event,
    Failed,
    Needs,
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
    "Needs",
    "Serving",
    "Steps",
    "TokenText",
    "TurnRequest",
    "Unit",
    "idle",
    "turn",
]
