"""The card says what was measured, and what was measured is what was promised."""

import json

import pytest

from models.spark.card import CARD, with_tables
from models.spark.evaluate import RESULTS, tasks, wilson
from models.spark.fonts import BUILT_IN

# The least share right for each promise, in the words of the evaluation's rows.
PROMISES = {
    "solid colour, 32 to 256 px, square or not": 0.99,
    "colour of a shape": 0.98,
    "shape": 0.89,
    "clean digit": 0.98,
    "hard digit": 0.85,
    "colour of the first or second of two solid images": 0.96,
    "code of a name, 3 to 40 lines": 0.98,
    "code of a name, 60 to 95 lines": 0.88,
    "Unknown for an absent name, 3 to 40 lines": 0.97,
    "my code, 20 to 400 tokens": 0.95,
    "secret code, 20 to 400 tokens": 0.95,
}
ROWS = {row["task"]: row for row in json.loads(RESULTS.read_text())["rows"]}


def test_the_cards_tables_are_the_evaluations():
    text = CARD.read_text()
    assert with_tables(text, json.loads(RESULTS.read_text())) == text


def test_every_task_was_evaluated_and_the_targets_are_the_promises():
    listed = tasks(BUILT_IN, BUILT_IN)
    assert [task.name for task in listed] == list(ROWS)
    assert {task.name: task.target for task in listed if task.target} == PROMISES
    assert {task.name for task in listed if task.apart} == {
        name for name, row in ROWS.items() if row["apart"]
    }


@pytest.mark.parametrize("task", PROMISES)
def test_every_promise_is_kept_on_five_hundred_samples_or_more(task):
    row = ROWS[task]
    assert row["samples"] >= 500
    assert row["right"] >= PROMISES[task] * row["samples"]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_intervals_are_those_of_the_counts(row):
    low, high = wilson(row["right"], row["samples"])
    assert (row["low"], row["high"]) == (round(low, 4), round(high, 4))


def test_wilsons_interval_as_published():
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    published = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605)}
    published |= {(0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (right, samples), interval in published.items():
        assert wilson(right, samples) == pytest.approx(interval, abs=5e-5)
