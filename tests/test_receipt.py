"""The receipt: its sums hold by construction (I11), and its wire form is the documented one."""

import dataclasses
import itertools
import json

import pytest

from surefoot.receipt import Finish, Kind, Media, Miss, Receipt, Timings

FIELDS = {
    "id", "kind", "model", "finish",
    "prompt_tokens", "restored_tokens", "computed_tokens", "unreached_tokens",
    "sources",
    "boundary_tokens", "block_name",
    "state_tokens", "state_digest",
    "common_prefix_tokens", "diverged_at_token",
    "miss_reason",
    "exact", "suspect", "verified", "decode",
    "media",
    "committed_tokens", "salted",
    "timings_ms",
}  # fmt: skip
MISSES = [
    "cold", "diverged", "evicted", "no_snapshot", "too_short", "bypass", "corrupt", "quarantined",
    "deadline", "tier_error", "busy", "unsupported",
]  # fmt: skip
LEAST = {
    "id": "turn-1",
    "kind": Kind.TURN,
    "model": "ab" * 32,
    "finish": Finish.STOP,
    "prompt_tokens": 10,
    "restored_tokens": 0,
    "computed_tokens": 10,
}
FULL = LEAST | {
    "finish": Finish.CANCELLED,
    "restored_tokens": 6,
    "computed_tokens": 3,
    "unreached_tokens": 1,
    "sources": {"ram": 4, "ssd": 2},
    "boundary_tokens": 6,
    "block_name": "cd" * 32,
    "state_tokens": 8,
    "state_digest": "ef" * 32,
    "common_prefix_tokens": 7,
    "diverged_at_token": 7,
    "miss_reason": Miss.DIVERGED,
    "exact": "numeric",
    "suspect": True,
    "verified": True,
    "decode": "batched",
    "media": (Media("image", "01" * 32, 64, True),),
    "committed_tokens": 2,
    "salted": True,
    "timings_ms": Timings(queue=1.0, restore=2.0, media=3.0, prefill=4.0, ttft=5.0, total=6.0),
}
NULLABLE = {
    "boundary_tokens", "block_name", "state_tokens", "state_digest", "common_prefix_tokens",
    "diverged_at_token", "miss_reason", "verified",
}  # fmt: skip


def receipt(**change):
    return Receipt(**LEAST | change)


def lawful(prompt, restored, computed, unreached, finish, sources):
    """Say the law in other words than the code does."""
    counts = (restored, computed, unreached)
    cut_short = finish in ("cancelled", "error")
    return (
        prompt == sum(counts)
        and all(count >= 0 for count in counts)
        and (unreached == 0 or cut_short)
        and restored == sum(sources.values())
        and all(count >= 0 for count in sources.values())
    )


def test_no_receipt_exists_whose_sums_do_not_hold():  # I11
    counts = range(-1, 4)
    sources = ({}, {"ram": 0}, {"ram": 1}, {"ram": 1, "ssd": 1}, {"ram": 3}, {"ram": 2, "ssd": -1})
    for prompt, restored, computed, unreached in itertools.product(counts, repeat=4):
        for finish, named in itertools.product(Finish, sources):
            fields = {
                "prompt_tokens": prompt,
                "restored_tokens": restored,
                "computed_tokens": computed,
                "unreached_tokens": unreached,
                "finish": finish,
                "sources": named,
            }
            if lawful(prompt, restored, computed, unreached, finish, named):
                receipt(**fields)
            else:
                with pytest.raises(AssertionError):
                    receipt(**fields)


def test_the_wire_form_has_exactly_the_documented_fields():
    assert set(receipt().to_json()) == set(Receipt(**FULL).to_json()) == FIELDS
    assert set(FULL) == FIELDS


def test_every_field_reaches_the_wire_under_its_own_name():
    wire = Receipt(**FULL).to_json()
    for name, value in FULL.items():
        if name not in ("media", "timings_ms"):
            assert wire[name] == value, name
    assert wire["timings_ms"] == {
        "queue": 1.0,
        "restore": 2.0,
        "media": 3.0,
        "prefill": 4.0,
        "ttft": 5.0,
        "total": 6.0,
    }
    assert wire["media"] == [
        {"kind": "image", "name": "01" * 32, "tokens": 64, "feature_hit": True}
    ]


def test_what_does_not_apply_is_null():
    wire = receipt().to_json()
    assert {name for name, value in wire.items() if value is None} == NULLABLE
    assert wire["timings_ms"]["ttft"] is None
    assert (wire["exact"], wire["decode"], wire["media"]) == ("bitwise", "alone", [])
    assert (wire["sources"], wire["committed_tokens"], wire["salted"]) == ({}, 0, False)


def test_the_wire_form_is_plain_json():
    wire = Receipt(**FULL).to_json()
    assert json.loads(json.dumps(wire)) == wire
    assert type(wire["finish"]) is type(wire["kind"]) is type(wire["miss_reason"]) is str


def test_the_wire_form_shares_nothing_with_the_receipt():
    sources = {"ram": 6}
    one = receipt(restored_tokens=6, computed_tokens=4, sources=sources)
    one.to_json()["sources"]["ram"] = 0
    assert one.to_json()["sources"] == {"ram": 6}


@pytest.mark.parametrize("reason", MISSES)
def test_every_miss_is_a_word_on_the_wire(reason):
    assert receipt(miss_reason=Miss(reason)).to_json()["miss_reason"] == reason


def test_the_words_of_the_receipt_are_closed_sets():
    assert [one.value for one in Miss] == MISSES
    assert [one.value for one in Kind] == ["turn", "idle"]
    assert [one.value for one in Finish] == ["stop", "length", "tool_calls", "cancelled", "error"]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("finish", Finish)
def test_kind_and_finish_are_words_on_the_wire(kind, finish):
    wire = receipt(kind=kind, finish=finish).to_json()
    assert (wire["kind"], wire["finish"]) == (kind.value, finish.value)


def test_a_receipt_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt().computed_tokens = 0
