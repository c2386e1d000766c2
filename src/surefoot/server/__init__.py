"""OpenAI-shaped HTTP: wire shapes in, receipts out. Refuses what it does not honour.

    app.py        the routes
    config.py     what a server is given: its settings, and the backend behind it
    limits.py     how much may be sent, by one and by all
    room.py       the places and the memory that all requests share, and who gives way
    upload.py     a body as it arrives, and how long it may take
    connection.py heads that dribble, answers that are not read
    access.py     hosts, origins, keys, and who may see the admin pages
    edge.py       the outermost layer: foreign hosts, full servers, late bodies, bugs
    fields.py     every request field: honoured, fixed, without effect, refused
    values.py     one JSON value checked: one sentence when it is wrong
    messages.py   messages and tools
    images.py     data URLs to files; what is to be fetched
    addresses.py  which addresses are public
    fetching.py   http(s) URLs to files, from public addresses alone
    openapi.py    the description of all this, from the tables that hold it
    reading.py    a body -> a ``TurnRequest``
    running.py    one submitted turn: its events, and the client that may leave
    shapes.py     events -> chat completions and text completions
    refusals.py   the one table from errors to statuses
    metrics.py    receipts -> Prometheus

It decides nothing about an answer: that is ``turn``'s.
"""

from surefoot.server.app import create_app
from surefoot.server.config import Backend, ServerConfig
from surefoot.server.connection import protocol_for
from surefoot.server.fetching import Fetcher
from surefoot.server.limits import Limits
from surefoot.server.metrics import Metrics

__all__ = [
    "Backend",
    "Fetcher",
    "Limits",
    "Metrics",
    "ServerConfig",
    "create_app",
    "protocol_for",
]
