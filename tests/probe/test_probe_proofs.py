"""A leg's way of asking is the first that fresh prompts show to work."""

import asyncio
import json

import httpx
import pytest

from surefoot.probe.asking import Asker
from surefoot.probe.plants import Plants
from surefoot.probe.proofs import PROOFS, first_proven
from surefoot.probe.trail import Budget, NotApplicable, Request, Trail, Unsettled
from surefoot.testing.broken_server import VirtualClock


def proven(answers, ways=("this", "that")):
    """Which way is taken by a server that answers so, and how often it is asked."""
    asked = []

    def answer(request):
        way = json.loads(request.content)["messages"][0]["content"].split()[0]
        asked.append(way)
        status, said = answers(way, asked.count(way))
        body = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
        return httpx.Response(status, json=body if status == 200 else {"error": said})

    async def run():
        clock = VirtualClock()
        transport = httpx.MockTransport(answer)
        async with Asker("http://x/v1", clock=clock.now, transport=transport) as asker:
            trail = Trail(asker, Plants(1), Budget(10**6, 1e9, 0.0), lambda _: None, [])

            def fresh(way, proof):
                messages = [{"role": "user", "content": f"{way} {proof}"}]
                return Request(f"proof {proof}", {"messages": messages}, "yes", ("no",))

            return await first_proven(trail, ways, fresh, task="to say yes")

    return asked, lambda: asyncio.run(run())


def test_the_first_way_that_works_five_times_is_taken():
    asked, run = proven(
        lambda way, count: (200, "Yes." if way == "that" or count < PROOFS else "No")
    )
    assert run() == "that"
    assert asked == ["this"] * PROOFS + ["that"] * PROOFS


def test_a_way_ends_at_its_first_wrong_answer():
    asked, run = proven(lambda way, count: (200, "No."))
    with pytest.raises(Unsettled, match="to say yes"):
        run()
    assert asked == ["this", "that"]


def test_only_a_server_that_refuses_every_way_does_not_take_it():
    _, run = proven(lambda way, count: (400, "never"))
    with pytest.raises(NotApplicable, match="never"):
        run()
    _, run = proven(lambda way, count: (400, "never") if way == "this" else (200, "No."))
    with pytest.raises(Unsettled):
        run()
