"""A row is good only if every bit is equal and a warm row restored something."""

import io
import itertools

import pytest
from rich.console import Console

from surefoot.bench.client import Answer
from surefoot.bench.demo import Row
from surefoot.bench.replay import Call, recorded_calls
from surefoot.bench.tables import Table, median
from surefoot.bench.ttft import tokens
from surefoot.cli.demo_table import DemoTable

CALL = Call(1, 1, [])
RECEIPT = {"state_digest": "d", "restored_tokens": 0, "prompt_tokens": 9, "sources": {}}
COLD = Answer("text", ("p",), RECEIPT, 2.0, 3.0)


def warm(**changes):
    receipt = RECEIPT | {"restored_tokens": 4, "sources": {"ram": 4}} | changes.pop("receipt", {})
    fields = {"text": "text", "logprobs": ("p",), "ttft_s": 0.5, "total_s": 1.0} | changes
    return Row(CALL, "ram", Answer(receipt=receipt, **fields), COLD)


def verdict(rows):
    console = Console(file=io.StringIO(), width=80)
    table = DemoTable(console, as_json=False)
    for row in rows:
        table.row(row)
    good = table.verdict(rows)
    return good, console.file.getvalue()


def test_equal_rows_are_good_and_their_speed_up_is_told():
    rows = [Row(CALL, "cold", COLD, COLD), warm(), Row(CALL, "ssd", warm().answer, COLD)]
    good, said = verdict(rows)
    assert good
    assert "4.0x" in said
    assert max(len(line) for line in said.splitlines()) <= 80


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"text": "other"}, "text"),
        ({"logprobs": ("q",)}, "logprobs"),
        ({"receipt": {"state_digest": "e"}}, "state_digest"),
        ({"receipt": {"restored_tokens": 0, "sources": {}}}, None),
    ],
)
def test_one_unequal_bit_or_a_warm_row_that_restored_nothing_is_bad(changes, what):
    row = warm(**changes)
    assert not row.good
    assert [name for name, equal in row.equal.items() if not equal] == ([what] if what else [])
    good, said = verdict([Row(CALL, "cold", COLD, COLD), row])
    assert not good
    assert "1 of 2 rows" in said


def test_no_digest_is_not_an_equal_digest():
    nothing = {"state_digest": None}
    cold = Answer("text", ("p",), RECEIPT | nothing, 2.0, 3.0)
    assert not Row(CALL, "ram", warm(receipt=nothing).answer, cold).good


def test_the_recording_is_three_conversations_and_every_call_extends_the_one_before():
    calls = recorded_calls(calls=5)
    assert [(one.conversation, one.number) for one in calls] == [
        (conversation, number) for conversation in (1, 2, 3) for number in range(1, 6)
    ]
    for before, after in itertools.pairwise(calls):
        if before.conversation == after.conversation:
            assert after.messages[: len(before.messages)] == before.messages
    assert len(recorded_calls(calls=None)) > len(calls)


def test_calls_and_results_are_written_as_text():
    every = [one for call in recorded_calls(calls=None) for one in call.messages]
    assert {one["role"] for one in every} == {"system", "user", "assistant"}
    assert any("[call get_user_details]" in one["content"] for one in every)
    assert any(one["content"].startswith("[result of get_user_details]") for one in every)


def test_token_prompts_are_fixed_and_differ_by_seed():
    assert tokens(5, seed=1) == tokens(9, seed=1)[:5]
    assert tokens(50, seed=1) != tokens(50, seed=2)
    assert all(100 <= token < 40_100 for token in tokens(1000, seed=3))


def test_a_table_is_markdown_and_says_what_was_missed():
    table = Table("T", ("a", "b"), (("1", "2"),), (("fast", True), ("small", False)))
    assert table.lines() == [
        "### T",
        "",
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "",
        "- reached: fast",
        "- MISSED: small",
    ]
    assert median([3.0, 1.0, 2.0]) == 2.0
