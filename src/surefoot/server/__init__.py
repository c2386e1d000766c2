"""OpenAI-shaped HTTP: wire shapes in, receipts out. Refuses what it does not honour.

    app.py        the routes
    config.py     what a server is given: its settings, and the backend behind it
    access.py     hosts, origins, keys, and who may see the admin pages
    edge.py       the outermost layer: foreign hosts, too many requests, bugs
    fields.py     every request field: honoured, fixed, without effect, refused
    values.py     one JSON value checked: one sentence when it is wrong
    messages.py   messages and tools
    reading.py    a body -> a ``TurnRequest``
    running.py    one submitted turn: its events, and the client that may leave
    shapes.py     events -> chat completions and text completions
    refusals.py   the one table from errors to statuses
    metrics.py    receipts -> Prometheus

It decides nothing about an answer: that is ``turn``'s.
"""

from surefoot.server.app import create_app
from surefoot.server.config import Backend, Limits, ServerConfig
from surefoot.server.metrics import Metrics

__all__ = ["Backend", "Limits", "Metrics", "ServerConfig", "create_app"]
