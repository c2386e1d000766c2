"""The client of the demo and the benchmarks, on what our own server may stream."""

import json

import httpx

from surefoot.bench.client import Client


def test_an_answer_with_separators_that_json_holds_raw_is_read_whole(monkeypatch):
    """The server writes them as they are; httpx would end a line at each."""
    said = "one\u2028two\u0085three"
    chunks = [
        {"choices": [{"delta": {"content": said}, "finish_reason": "stop"}]},
        {"choices": [], "surefoot": {"state_digest": "d", "sources": {}}},
    ]
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    body = "".join([*lines, "data: [DONE]\n\n"])
    served = httpx.MockTransport(lambda _: httpx.Response(200, text=body))
    real = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: real(**given, transport=served))
    client = Client("http://here")
    assert client.ask({}).text == said
    client.close()
