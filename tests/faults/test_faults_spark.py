"""A short script over ``spark``, a vision-language model, while its tier goes wrong on schedule."""

import time

import pytest
import torch

from surefoot.chat import load_chat
from surefoot.engine.hf import load_engine
from surefoot.pictures import COLOURS, solid
from surefoot.receipt import Miss
from surefoot.testing.faulty import FEATURES, PARTS, Schedule
from surefoot.testing.live_state import differences, live_state
from surefoot.testing.script import (
    AMPLE,
    BEGUN_S,
    FLOOR_S,
    RECORDS,
    WAIT_S,
    House,
    Subject,
    play_shortly,
)
from surefoot.turn import CacheMode


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    engine = load_engine(
        "spark",
        threads=1,
        block_tokens=16,
        dtype=None,
        attention=None,
        device="cpu",
        cache_folder=tmp_path_factory.mktemp("expanded"),
        progress=lambda line: None,
        clock=time.monotonic,
    )
    pictures = solid(COLOURS["red"]), solid(COLOURS["blue"])
    return Subject(engine, load_chat(engine.tokenizer_source), pictures, answer_tokens=4)


@pytest.fixture(scope="module")
def cold(subject):
    house = House(subject, None, mode=CacheMode.BYPASS)
    answers = play_shortly(house)
    house.close()
    return answers


FAULTS = {
    "": None,
    f"get#1[{PARTS}] flipped@30000; get#12[{PARTS}] swapped@5": Miss.CORRUPT,
    f"get[{PARTS}] broken": Miss.TIER_ERROR,
    f"get[{PARTS}] stalled": Miss.DEADLINE,
    f"get#3[{PARTS}] vanished; get[{FEATURES}] short@500": Miss.EVICTED,
    f"put#2[{PARTS}] flipped@40000; put[{FEATURES}] done": Miss.CORRUPT,
    "put stalled": Miss.COLD,
}


@pytest.mark.parametrize("text", FAULTS)
def test_the_answers_of_a_real_model_are_the_cold_ones_under_faults(tmp_path, subject, cold, text):
    house = House(
        subject,
        tmp_path / "store",
        schedules={RECORDS: Schedule.read(text)},
        floor_s=FLOOR_S if "stalled" in text else WAIT_S,
    )
    answers = play_shortly(house)
    assert [one.bits for one in answers] == [one.bits for one in cold]
    assert FAULTS[text] in {one.miss_reason for one in house.receipts}
    assert any(tier.struck for tier in house.tiers) == bool(text)
    house.lift()
    parts = house.check_later_plans()
    assert parts or text == "put stalled"
    house.close()


def test_a_read_after_its_deadline_changes_no_tensor_of_a_real_sequence(tmp_path, subject, cold):
    house = House(subject, tmp_path / "store", ram_bytes=AMPLE, floor_s=BEGUN_S)
    play_shortly(house)  # its last life has restored nothing yet of what is asked below
    house.restart()
    house._mode = CacheMode.READ
    tier = next(one for one in reversed(house.tiers) if one._root.name == RECORDS)
    tier.schedule = Schedule.read("get stalled")
    compared = []

    def release(units):
        run = house.engine.run
        if not compared and run and run.position >= len(run._run._prompt):
            before = live_state(run._cache), run._logits.clone()
            assert house.cache._lanes.reads.stalled
            tier.release.set()
            assert house.cache._lanes.reads.drain(WAIT_S)
            compared.extend(differences(before[0], live_state(run._cache)))
            compared.append(bool(torch.equal(before[1], run._logits)))

    house.engine.on_unit = release
    answer = house.ask("talk 1", house.asked["talk 1"].input.messages)
    assert compared == [True]
    assert answer.bits == next(one.bits for one in cold if one.label == "talk 1")
    assert answer.receipt.miss_reason is Miss.DEADLINE
    house.lift()
    house.close()
