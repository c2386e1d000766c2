"""A connection lasts as long as its client does its part: heads, refused bodies, unread answers."""

import asyncio
import json
import logging
import socket

import pytest
import uvicorn
from clockwork import now, pause, play
from scripted import CHAT, Server, done, hello
from test_server_client import PATIENCE_S, listening
from uvicorn.server import ServerState

from surefoot.scheduler import Delta
from surefoot.server import Limits, protocol_for
from surefoot.server.connection import PROGRESS_BYTES

LIMITS = Limits(stall_s=20.0, requests=2)
BODY = json.dumps(CHAT).encode()
HIGH_WATER = 65536


def head(path="/v1/chat/completions", method="POST", **headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


def post(body=BODY):
    return head(content_length=len(body)) + body


class Wire(asyncio.Transport):
    """The other end of one connection: what it wrote, and a client that reads or does not."""

    def __init__(self, place, *, reads=True):
        super().__init__({"peername": ("10.1.2.3", 5), "sockname": ("127.0.0.1", 8000)})
        self.reads = reads
        self.unsent = 0
        self.written = b""
        self.closed_at = None
        self._ending = False
        self._protocol = place.protocol(
            config=place.config, server_state=place.state, app_state={}, _loop=None
        )
        self._protocol.connection_made(self)

    def say(self, data):
        if self.closed_at is None:
            self._protocol.data_received(data)

    def write(self, data):
        self.written += data
        if not self.reads:
            before, self.unsent = self.unsent, self.unsent + len(data)
            if before <= HIGH_WATER < self.unsent:
                self._protocol.pause_writing()

    def read(self, nbytes):
        before, self.unsent = self.unsent, max(0, self.unsent - nbytes)
        if self.unsent <= HIGH_WATER // 4 < before:
            self._protocol.resume_writing()
        if self._ending and not self.unsent:
            self._lost()

    def get_write_buffer_size(self):
        return self.unsent

    def close(self):
        self._ending = True
        if not self.unsent:
            self._lost()

    def abort(self):
        self._ending = True
        self._lost()

    def is_closing(self):
        return self._ending

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def _lost(self):
        if self.closed_at is None:
            self.closed_at = now()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    @property
    def statuses(self):
        return [int(one[:3]) for one in self.written.split(b"HTTP/1.1 ")[1:]]

    def error(self):
        return json.loads(self.written.rpartition(b"\r\n\r\n")[2])["error"]


class Place:
    def __init__(self, script=hello, limits=LIMITS):
        self.server = Server(script, limits=limits)
        self.protocol = protocol_for(limits)
        self.config = uvicorn.Config(self.server.app, log_config=None, ws="none", lifespan="off")
        self.config.load()
        self.state = ServerState()

    async def submitted(self):
        while not self.server.turns.tickets:
            await asyncio.sleep(0)  # one turn of the loop, not a time
        return self.server.turns.tickets[-1]


def test_a_connection_that_says_nothing_is_closed_without_a_word():
    async def story():
        wire = Wire(Place())
        await pause(100)
        assert (wire.closed_at, wire.written) == (20, b"")

    play(story())


def test_a_head_that_dribbles_is_a_408_however_steadily_it_comes():
    async def story():
        wire = Wire(Place())
        for at in range(100):
            wire.say(head()[at : at + 1])
            await pause(1)
        assert (wire.closed_at, wire.statuses) == (20, [408])
        assert wire.error()["code"] == "request_timeout"

    play(story())


def test_the_next_head_has_as_long_as_the_first():
    async def story():
        wire = Wire(Place())
        await pause(19)
        wire.say(post())
        await pause(3)
        assert wire.statuses == [200]
        for at in range(100):
            wire.say(head()[at : at + 1])
            await pause(1)
        assert (wire.statuses, wire.closed_at) == ([200, 408], 19 + 20)

    play(story())


def test_an_answer_may_take_as_long_as_it_takes():
    async def story():
        place = Place(lambda request: [])
        wire = Wire(place)
        wire.say(post())
        await pause(10_000)
        assert wire.closed_at is None
        place.server.turns.deliver(done())
        await pause(1)
        assert wire.statuses == [200]

    play(story())


def test_requests_sent_ahead_are_all_answered():
    async def story():
        wire = Wire(Place())
        wire.say(post() * 3 + head()[:40])
        await pause(1)
        assert wire.statuses == [200] * 3
        await pause(100)
        assert (wire.statuses, wire.closed_at) == ([200] * 3, 5)  # idle, as uvicorn sees it

    play(story())


def test_an_answer_to_a_request_sent_ahead_may_take_as_long_as_any():
    async def story():
        place = Place(lambda request: [])
        wire = Wire(place)
        wire.say(post() * 2)
        await place.submitted()
        place.server.turns.deliver(done())
        await pause(1000)
        assert (wire.statuses, wire.closed_at) == ([200], None)
        place.server.turns.deliver(done())
        await pause(1)
        assert wire.statuses == [200, 200]

    play(story())


def test_the_rest_of_a_refused_body_is_not_waited_for():
    async def story():
        wire = Wire(Place(limits=Limits(stall_s=20.0, body_bytes=10)))
        wire.say(head(content_length=10**9))
        for _ in range(100):
            wire.say(b"x")
            await pause(1)
        assert (wire.statuses, wire.closed_at) == ([413], 20)

    play(story())


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 3000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        head(content_length="-5"),
    ],
)
def test_what_is_no_http_is_refused_in_the_shape_of_every_other_error(sent):
    async def story():
        wire = Wire(Place())
        wire.say(sent)
        await pause(1)
        assert wire.statuses == [400]
        assert wire.closed_at == 0
        assert wire.error() == {
            "message": "the request is not HTTP/1.1",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_http",
        }

    play(story())


def test_a_body_that_turns_into_nonsense_is_refused_once_and_is_no_bug(caplog):
    async def story():
        place = Place()
        wire = Wire(place)
        wire.say(head(transfer_encoding="chunked") + b"3\r\nabc\r\n")
        await pause(1)
        wire.say(b"nonsense\r\n")
        await pause(1)
        assert (wire.statuses, wire.closed_at) == ([400], 1)
        assert place.server.turns.requests == []

    with caplog.at_level(logging.ERROR):
        play(story())
    assert caplog.text == ""


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/v1/models", "*", "evil.example:443", "//v1/models", "/v1/../v1/models"],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "CONNECT", "POST"])
def test_a_target_that_is_no_path_of_ours_is_found_nowhere(target, method):
    async def story():
        wire = Wire(Place())
        wire.say(head(target, method, content_length="0"))
        await pause(1)
        assert wire.statuses in ([404], [405])

    play(story())


def test_an_answer_that_is_not_read_ends_with_its_connection_and_its_turn():
    async def story():
        place = Place(lambda request: [])
        wire = Wire(place, reads=False)
        wire.say(post(json.dumps(CHAT | {"stream": True}).encode()))
        ticket = await place.submitted()
        await pause(5)
        for _ in range(4):
            place.server.turns.deliver(Delta("x" * 50_000, ()))
        await pause(19)
        assert not ticket.cancelled.is_set()
        await pause(2)
        assert ticket.cancelled.is_set()
        assert wire.closed_at == 25
        assert wire.unsent < 3 * HIGH_WATER  # no more than one event above the mark

    play(story())


def test_an_answer_that_is_read_slowly_is_sent_to_its_end():
    async def story():
        place = Place(lambda request: [Delta("x" * 500_000, ()), done()])
        wire = Wire(place, reads=False)
        wire.say(post(json.dumps(CHAT | {"stream": True}).encode()))
        for _ in range(40):
            await pause(19)
            wire.read(PROGRESS_BYTES)
        assert now() > 500
        assert b"[DONE]" in wire.written

    play(story())


@pytest.mark.parametrize("reads_bytes", [0, PROGRESS_BYTES - 1])
def test_a_whole_answer_that_is_not_read_does_not_keep_its_connection(reads_bytes):
    async def story():
        wire = Wire(Place(lambda request: [Delta("x" * 500_000, ()), done()]), reads=False)
        wire.say(post())
        for _ in range(10):
            await pause(10)
            wire.read(reads_bytes)
            await pause(10)
        assert wire.statuses == [200]
        assert wire.closed_at == 20

    play(story())


def test_a_refusal_that_is_not_read_does_not_keep_its_connection():
    async def story():
        wire = Wire(Place(), reads=False)
        wire.say(b"hello\r\n\r\n")
        await pause(100)
        assert wire.closed_at == 20

    play(story())


def test_where_there_are_too_many_connections_the_one_idle_for_longest_goes():
    async def story():
        place = Place(lambda request: [])
        wires = []
        for number in range(6):
            wires.append(Wire(place))
            if number in (0, 3):
                wires[-1].say(post())
            await pause(1)
        await pause(1)
        gone = [number for number, wire in enumerate(wires) if wire.closed_at is not None]
        assert gone == [1, 2]
        assert len(place.state.connections) == LIMITS.connections

    play(story())


def test_connections_that_come_all_at_once_are_bounded_too():
    async def story():
        place = Place()
        wires = [Wire(place) for _ in range(100)]
        await pause(1)
        assert [wire.closed_at for wire in wires].count(None) == LIMITS.connections
        assert len(place.state.connections) == LIMITS.connections

    play(story())


def test_over_a_real_socket_a_dribbled_head_is_told_and_closed():
    limits = Limits(stall_s=0.2)
    with listening(Server(limits=limits), http=protocol_for(limits)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(b"POST /v1/chat/comp")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer


def test_over_a_real_socket_a_stream_that_nobody_reads_is_cancelled():
    limits = Limits(stall_s=0.2)
    server = Server(lambda request: [Delta("x" * 2**20, ())] * 40, limits=limits)
    with listening(server, http=protocol_for(limits)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(post(json.dumps(CHAT | {"stream": True}).encode()))
            while not server.turns.tickets:  # until the answer begins; nothing is taken
                assert b"HTTP/1.1 200 ".startswith(client.recv(13, socket.MSG_PEEK))
            assert server.turns.tickets[-1].cancelled.wait(PATIENCE_S)
