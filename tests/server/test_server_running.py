"""A turn in flight: clients that leave, engines that do not wait, servers that are full."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from scripted import CHAT, ScriptedTicket, Server, done

from surefoot.scheduler import Delta
from surefoot.server.running import MOST_BEHIND, into


class Client:
    """One ASGI request under the test's hand."""

    def __init__(self, server, **fields):
        self.server = server
        self.body = json.dumps(CHAT | fields).encode()
        self.sent = asyncio.Queue()
        self.left = asyncio.Event()
        self._given = False

    async def receive(self):
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    def start(self):
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        self.task = asyncio.create_task(self.server.app(scope, self.receive, self.sent.put))
        return self

    async def text(self, start):
        """Read the stream until an event holds ``start``."""
        while True:
            message = await self.sent.get()
            if start in message.get("body", b"").decode():
                return


async def submitted(server):
    while not server.turns.tickets:
        await asyncio.sleep(0)  # one turn of the loop, not a time
    return server.turns.tickets[-1]


def run(test):
    return asyncio.run(asyncio.wait_for(test, 20))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_cancels_its_turn(stream):
    async def story():
        server = Server(lambda request: [])
        client = Client(server, stream=stream).start()
        ticket = await submitted(server)
        assert not ticket.cancelled.is_set()
        client.left.set()
        await client.task
        assert ticket.cancelled.is_set()
        # What the engine still delivers goes nowhere and hurts nobody.
        server.turns.deliver(done())

    run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_half_way_cancels_its_turn(stream):
    async def story():
        server = Server(lambda request: [Delta("Hel", ())])
        client = Client(server, stream=stream).start()
        ticket = await submitted(server)
        if stream:
            await client.text("Hel")
        assert not ticket.cancelled.is_set()
        client.left.set()
        await client.task
        assert ticket.cancelled.is_set()

    run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_stops_a_request_cancels_its_turn(stream):
    async def story():
        server = Server(lambda request: [])
        client = Client(server, stream=stream).start()
        ticket = await submitted(server)
        client.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.task
        assert ticket.cancelled.is_set()

    run(story())


def test_a_stream_that_cannot_be_sent_cancels_its_turn(caplog):
    async def story():
        server = Server(lambda request: [Delta("Hel", ())])
        client = Client(server, stream=True)

        async def broken(message):
            raise OSError("the connection is gone")

        client.sent.put = broken
        client.start()
        ticket = await submitted(server)
        await client.task
        assert ticket.cancelled.is_set()

    run(story())
    assert "bug" not in caplog.text


def test_a_client_that_leaves_while_nothing_can_be_sent_to_it_cancels_its_turn():
    async def story():
        server = Server(lambda request: [Delta("Hel", ())])
        client = Client(server, stream=True)
        stuck = asyncio.Event()

        async def blocked(message):
            stuck.set()
            await asyncio.Event().wait()

        client.sent.put = blocked
        client.start()
        ticket = await submitted(server)
        await stuck.wait()
        client.left.set()
        while not ticket.cancelled.is_set():
            await asyncio.sleep(0)  # one turn of the loop, not a time
        assert not client.task.done()
        client.task.cancel()

    run(story())


def test_tokens_are_sent_as_they_come():
    async def story():
        server = Server(lambda request: [])
        client = Client(server, stream=True).start()
        await submitted(server)
        assert client.sent.empty()
        for text in ("one", "two"):
            server.turns.deliver(Delta(text, ()))
            await client.text(text)
        server.turns.deliver(done())
        await client.text("[DONE]")
        await client.task

    run(story())


def test_a_client_that_reads_slowly_does_not_hold_the_engine():
    async def story():
        server = Server(lambda request: [])
        client = Client(server, stream=True)
        reading = asyncio.Event()
        taken = client.sent.put

        async def slow(message):
            await reading.wait()
            await taken(message)

        client.sent.put = slow
        client.start()
        await submitted(server)
        for number in range(1000):
            server.turns.deliver(Delta(f"<{number}>", ()))
        server.turns.deliver(done())
        reading.set()
        await client.text("<999>")
        await client.text("[DONE]")
        await client.task

    run(story())


def test_a_client_that_falls_too_far_behind_its_stream_is_told_and_its_turn_cancelled():
    async def story():
        server = Server(lambda request: [])
        client = Client(server, stream=True)
        reading = asyncio.Event()
        taken = client.sent.put

        async def slow(message):
            await reading.wait()
            await taken(message)

        client.sent.put = slow
        client.start()
        ticket = await submitted(server)
        for number in range(MOST_BEHIND):
            server.turns.deliver(Delta(f"<{number}>", ()))
        await asyncio.sleep(0)  # one turn of the loop, not a time
        await asyncio.sleep(0)  # one turn of the loop, not a time
        assert not ticket.cancelled.is_set()
        for _ in range(1000):
            server.turns.deliver(Delta("too much", ()))
        while not ticket.cancelled.is_set():
            await asyncio.sleep(0)  # one turn of the loop, not a time
        server.turns.deliver(done())
        reading.set()
        await client.task
        sent = []
        while not client.sent.empty():
            sent.append(client.sent.get_nowait().get("body", b"").decode())
        text = "".join(sent)
        assert f"<{MOST_BEHIND - 1}>" in text
        assert text.count("too much") <= 1  # the one that was being sent makes place for one
        assert f"the client fell {MOST_BEHIND} events behind" in sent[-2]
        assert "[DONE]" not in text

    run(story())


def test_an_answer_that_is_not_streamed_has_no_limit_of_events():
    async def story():
        events = [Delta("x", ())] * (2 * MOST_BEHIND) + [done()]
        client = Client(Server(lambda request: events)).start()
        await client.text("x" * (2 * MOST_BEHIND))
        await client.task

    run(story())


def test_an_event_from_the_engine_thread_is_handed_to_the_loop():
    async def story():
        # In debug mode asyncio refuses what another thread may not do.
        asyncio.get_running_loop().set_debug(True)
        server = Server(lambda request: [])
        client = Client(server, stream=True).start()
        await submitted(server)
        with ThreadPoolExecutor(1) as engine:
            engine.submit(server.turns.deliver, Delta("one", ())).result()
            await client.text("one")
            engine.submit(server.turns.deliver, done()).result()
        await client.text("[DONE]")
        await client.task

    run(story())


def test_an_engine_outlives_the_loop_it_delivers_to():
    loop = asyncio.new_event_loop()
    deliver = into(loop, lambda event: None)
    loop.close()
    deliver(done())


def test_a_ticket_may_be_cancelled_twice():
    ticket = ScriptedTicket()
    ticket.cancel()
    ticket.cancel()
    assert ticket.cancelled.is_set()
