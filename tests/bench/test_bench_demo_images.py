"""A look is good only if every bit is equal, and one asked again restored and spared the tower."""

import io
import itertools
from base64 import b64decode
from dataclasses import replace

import pytest
from PIL import Image as Pillow
from rich.console import Console

from surefoot import pictures
from surefoot.bench import captions
from surefoot.bench.client import Answer
from surefoot.bench.demo_images import BYTES, Look, LookRow, looks
from surefoot.bench.tables import Bench
from surefoot.cli.demo_table import ImageTable

LOOK = Look("one prompt", "red", [])
RECEIPT = {
    "state_digest": "d",
    "restored_tokens": 16,
    "prompt_tokens": 31,
    "sources": {"ram": 16},
    "media": [{"feature_hit": True}, {"feature_hit": True}],
}
COLD = Answer(
    "Red",
    ("p",),
    RECEIPT | {"restored_tokens": 0, "sources": {}, "media": [{"feature_hit": False}] * 2},
    0.2,
    0.3,
)


def warm(leg="ram", **changes):
    answer = Answer("Red", ("p",), RECEIPT | changes.pop("receipt", {}), 0.1, 0.2)
    return LookRow(LOOK, leg, replace(answer, **changes), COLD)


def verdict(rows):
    console = Console(file=io.StringIO(), width=80)
    table = ImageTable(console, as_json=False)
    table.process("a leg", 4711)
    for row in rows:
        table.row(row)
    good = table.verdict(rows)
    return good, console.file.getvalue()


def test_equal_looks_are_good_and_fit_a_terminal():
    rows = [LookRow(LOOK, "cold", COLD, COLD), LookRow(LOOK, "first", COLD, COLD), warm()]
    good, said = verdict(rows)
    assert good
    assert "2/2" in said
    assert "0/2" in said
    assert "1 first and 1 warm answers" in said
    assert "none of the 1 that were asked again" in said
    assert "100 ms" in said
    assert max(len(line) for line in said.splitlines()) <= 80


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"text": "Blue"}, "text"),
        ({"logprobs": ("q",)}, "logprobs"),
        ({"receipt": {"state_digest": "e"}}, "state_digest"),
        ({"receipt": {"restored_tokens": 0}}, None),
        ({"receipt": {"media": [{"feature_hit": True}, {"feature_hit": False}]}}, None),
    ],
)
@pytest.mark.parametrize("leg", ["ram", "ssd"])
def test_one_unequal_bit_or_a_tower_that_ran_again_is_bad(leg, changes, what):
    row = warm(leg, **changes)
    assert not row.good
    assert [name for name, equal in row.equal.items() if not equal] == ([what] if what else [])
    good, said = verdict([row])
    assert not good
    assert "1 of 1 rows" in said


def test_the_demo_asks_what_the_bug_reports_asked():
    asked = looks()
    assert [one.what for one in asked[:4]] == ["red", "blue", "green", "red"]
    assert asked[0].messages == asked[3].messages
    texts = {
        repr([part for part in one.messages[-1]["content"] if part["type"] == "text"])
        for one in asked[:6]
    }
    assert len(texts) == 1, "only the picture differs"
    sizes = []
    for one in asked[4:6]:
        url = one.messages[-1]["content"][0]["image_url"]["url"]
        image = Pillow.open(io.BytesIO(decoded(url)))
        assert image.tobytes() == BYTES
        sizes.append(image.size)
    assert sizes == [(6, 4), (4, 6)]
    # Each turn about the photo begins with the turn before it.
    photo = [one.messages for one in asked if one.scene == "photo"]
    for before, after in itertools.pairwise(photo):
        assert after[: len(before)] == before


def decoded(url):
    return b64decode(url.removeprefix("data:image/png;base64,"))


def test_pictures_are_functions_of_their_arguments():
    assert pictures.photo() == pictures.photo()
    specks = [pictures.speckled((255, 0, 0), number, 8, 8) for number in range(200)]
    assert specks[5] == pictures.speckled((255, 0, 0), 5, 8, 8)
    assert len(set(specks)) == 200
    for picture in specks[:20]:
        samples = Pillow.open(io.BytesIO(picture)).tobytes()
        assert min(samples[::3]) >= 247
        assert max(*samples[1::3], *samples[2::3]) <= 8


class Server:
    """Stands for a server: every other answer is as slow as told, and some are other bits."""

    def __init__(self, *_, slow=3.0, differs_at=None):
        self.slow, self.differs_at, self.asked = slow, differs_at, []
        self.client = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, body, *, mode="use"):
        self.asked.append((repr(body), mode))
        took = self.slow if mode == "bypass" else 1.0
        odd = self.differs_at == len(self.asked)
        receipt = {"prompt_tokens": 40 + len(body["messages"][0]["content"]), "state_digest": odd}
        return Answer("Red", ({"token": "Red"},), receipt, took, took)

    def wait(self, what, ready, *, timeout_s):
        held = len(self.asked) * 500
        return {"features": {tier: {"bytes": held} for tier in ("ram", "ssd")}}

    def wait_written(self):
        pass


def bench(tmp_path):
    return Bench(tmp_path, tmp_path, lambda line: None)


@pytest.mark.parametrize(("slow", "met"), [(3.0, True), (1.2, False)])
def test_captions_compares_one_server_with_itself(tmp_path, monkeypatch, slow, met):
    server = Server(slow=slow)
    monkeypatch.setattr(captions, "PICTURES", 24)
    monkeypatch.setattr(captions, "ServerProcess", lambda *_: server)
    table = captions.captions(bench(tmp_path))
    assert table.rows[0][2] == f"{slow:.2f}x"
    assert [reached for _, reached in table.targets] == [met]
    asked = server.asked[-2 * captions.PICTURES :]
    assert len({body for body, _ in asked}) == captions.PICTURES
    modes = [mode for _, mode in asked]
    assert modes[:4] == ["bypass", "use", "use", "bypass"]


def test_captions_of_unequal_answers_are_no_measurement(tmp_path, monkeypatch):
    server = Server(differs_at=30)
    monkeypatch.setattr(captions, "ServerProcess", lambda *_: server)
    with pytest.raises(AssertionError, match="differ"):
        captions.captions(bench(tmp_path))


def test_features_over_their_budget_miss_the_target(tmp_path, monkeypatch):
    for name, value in (("DISTINCT", 12), ("FEATURE_RAM_BYTES", 5_000)):
        monkeypatch.setattr(captions, name, value)
    monkeypatch.setattr(captions, "ServerProcess", lambda *_: Server())
    table = captions.features(bench(tmp_path))
    assert [reached for _, reached in table.targets] == [False, True]
