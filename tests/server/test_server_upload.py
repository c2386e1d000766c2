"""A body that does not come is not waited for: each deadline to its second, by its own clock."""

import asyncio
import json

import pytest
from clockwork import now, pause, play
from scripted import CHAT, Server, done

from surefoot.server import Limits

LIMITS = Limits(stall_s=20.0, requests=4)
BODY = json.dumps(CHAT).encode()


class Upload:
    """One POST whose body the test sends piece by piece."""

    def __init__(self, server, path="/v1/chat/completions", headers=()):
        self.messages = asyncio.Queue()
        self.sent = []
        self.ended_at = None
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *headers],
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        self.task = asyncio.create_task(self._run(server, scope))

    async def _run(self, server, scope):
        await server.app(scope, self.messages.get, self._send)
        self.ended_at = now()

    async def _send(self, message):
        self.sent.append(message)

    def bring(self, piece, more=True):
        self.messages.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None

    def error(self):
        return json.loads(self.sent[1]["body"])["error"]


def test_a_body_that_never_comes_is_a_408_after_the_stall():
    async def story():
        server = Server(limits=LIMITS)
        upload = Upload(server)
        await upload.task
        assert (upload.status, upload.ended_at) == (408, 20)
        found = upload.error()
        assert (found["type"], found["code"]) == ("invalid_request_error", "request_timeout")
        assert "nothing more of the body came for 20 s" in found["message"]
        assert server.turns.requests == []

    play(story())


def test_a_body_that_stops_half_way_is_a_408_after_the_stall():
    async def story():
        upload = Upload(Server(limits=LIMITS))
        for at in range(3):
            upload.bring(BODY[at : at + 1])
            await pause(19)
        await pause(0.5)
        assert upload.status is None
        await upload.task
        assert (upload.status, upload.ended_at) == (408, 2 * 19 + 20)

    play(story())


def test_a_body_that_dribbles_is_a_408_when_the_whole_takes_too_long():
    async def story():
        upload = Upload(Server(limits=LIMITS))
        for _ in range(30):
            upload.bring(b" ")
            await pause(7)
        assert (upload.status, upload.ended_at) == (408, 120)
        assert "not whole within 120 s" in upload.error()["message"]

    play(story())


def test_a_body_that_comes_in_time_is_answered_however_long_the_answer_takes():
    async def story():
        server = Server(lambda request: [], limits=LIMITS)
        upload = Upload(server)
        for at in range(len(BODY[:110])):
            upload.bring(BODY[at : at + 1])
            await pause(1)
        upload.bring(BODY[110:], more=False)
        await pause(100_000)
        assert upload.status is None
        server.turns.deliver(done())
        await upload.task
        assert upload.status == 200

    play(story())


@pytest.mark.parametrize(("whole", "after_s"), [(False, 3), (True, 3), (True, 1000)])
def test_a_client_that_leaves_is_noticed_at_once_and_is_no_bug(whole, after_s, caplog):
    async def story():
        server = Server(lambda request: [], limits=LIMITS)
        upload = Upload(server)
        upload.bring(BODY if whole else BODY[:9], more=not whole)
        await pause(after_s)
        upload.messages.put_nowait({"type": "http.disconnect"})
        await upload.task
        assert upload.ended_at == after_s
        assert len(server.turns.tickets) == whole

    play(story())
    assert caplog.text == ""


def test_a_slow_body_holds_no_room_that_another_needs():
    async def story():
        server = Server(limits=LIMITS)
        piece = bytes(60 * 2**20)
        slow = [Upload(server) for _ in range(4)]
        for upload in slow:
            upload.bring(piece)  # 240 of 256 MiB
            await pause(1)
        other = Upload(server)
        await pause(0)
        other.bring(b" " * 2**20 * 15 + BODY, more=False)
        await other.task
        assert other.status == 200
        await slow[0].task
        assert (slow[0].status, slow[0].ended_at) == (503, other.ended_at)
        assert "needed for others" in slow[0].error()["message"]
        assert [one.status for one in slow[1:]] == [None] * 3
        for upload in slow[1:]:
            await upload.task
        assert [one.status for one in slow[1:]] == [408] * 3

    play(story())


def test_places_that_dribbling_bodies_hold_are_given_to_others():
    async def story():
        server = Server(limits=LIMITS)
        slow = [Upload(server) for _ in range(4)]
        await pause(1)
        early = Upload(server)
        await early.task
        assert (early.status, early.sent[0]["headers"][0]) == (503, (b"retry-after", b"1"))
        await pause(1)
        for _ in range(20):
            other = Upload(server)
            other.bring(BODY, more=False)
            await other.task
            assert other.status == 200
        await pause(0)
        assert [one.status for one in slow].count(503) == 1

    play(story())


def test_a_request_at_work_gives_way_to_nobody():
    async def story():
        server = Server(lambda request: [], limits=LIMITS)
        working = [Upload(server) for _ in range(4)]
        for upload in working:
            upload.bring(BODY, more=False)
        await pause(1000)
        assert len(server.turns.requests) == 4
        for _ in range(3):
            newcomer = Upload(server)
            newcomer.bring(BODY, more=False)
            await newcomer.task
            assert newcomer.status == 503
        server.turns.deliver(done())
        await working[3].task
        assert [one.status for one in working] == [None, None, None, 200]
        for upload in working[:3]:
            upload.task.cancel()

    play(story())


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes():
    async def story():
        server = Server(limits=Limits(body_bytes=100))
        most = server_most(server)
        for said, status in ((most + 1, 413), (most, 408), (-1, 408)):
            upload = Upload(server, headers=[(b"content-length", b"%d" % said)])
            await upload.task
            assert upload.status == status
        huge = Upload(server, headers=[(b"content-length", b"9" * 5000)])
        await huge.task
        assert huge.status == 413

    play(story())


def server_most(server):
    return Limits(body_bytes=100).chat_body_bytes
