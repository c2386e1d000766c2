"""One tenant's prefixes give another nothing: no hit, no word in a receipt, no time."""

import random
import statistics
import time

import httpx
import pytest
from housed import C, housed
from two_samples import p_value

from surefoot.bench.process import ServerProcess

KEYS = ("key-a", "key-b")
A, B = ({"authorization": f"Bearer {key}"} for key in KEYS)
PAIRS = 200
LENGTH = 3 * C
# What of a receipt is this one request's own, or the time of the day.
OWN = {"id", "block_name", "state_digest"}


def prompts(count, *, vocabulary=200, length=LENGTH, seed=7):
    """Prompts that part from each other at their first two tokens."""
    dice = random.Random(seed)
    heads = dice.sample(range(vocabulary * vocabulary), count)
    return [
        [1 + head % vocabulary, 1 + head // vocabulary]
        + [dice.randrange(1, vocabulary) for _ in range(length - 2)]
        for head in heads
    ]


def ask(house, prompt, headers, **fields):
    fields = {"max_tokens": 1, "ignore_eos": True} | fields
    response = house.text(prompt=prompt, headers=headers, **fields)
    assert response.status_code == 200, response.text
    assert house.cache.drain(20)
    return response.json()


def units(answer):
    return answer["surefoot"]["timings_ms"]["ttft"]


def account(answer):
    receipt = answer["surefoot"]
    shared = {name: value for name, value in receipt.items() if name not in OWN}
    # How far the first tokens agree with the caller's own prompts depends on the draw.
    return shared | {"common_prefix_tokens": None, "diverged_at_token": None}


def test_the_test_of_two_samples_tells_what_differs_and_only_that():
    dice = random.Random(3)
    same = [[dice.gauss(0, 1) for _ in range(PAIRS)] for _ in range(2)]
    assert p_value(*same) > 0.05
    assert p_value(same[0], [one + 1 for one in same[1]]) < 0.001
    assert p_value([1] * 10, [1] * 10) == 1.0


@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_a_prefix_that_another_key_has_takes_what_a_prefix_takes_that_nobody_has(tmp_path, tier):
    known, fresh = prompts(2 * PAIRS)[:PAIRS], prompts(2 * PAIRS)[PAIRS:]
    store, ram_bytes = (None, 1 << 24) if tier == "ram" else (tmp_path, 0)
    with housed(store, ram_bytes=ram_bytes, api_keys=KEYS) as house:
        for prompt in known:
            assert ask(house, prompt, A)["surefoot"]["restored_tokens"] == 0
        others, nobodys, own = [], [], []
        for at, (theirs, new) in enumerate(zip(known, fresh, strict=True)):
            pair = [(theirs, others), (new, nobodys)]
            for prompt, sample in pair if at % 2 else reversed(pair):
                sample.append(ask(house, prompt, B))
            own.append(ask(house, theirs, A))
    assert list(map(account, others)) == list(map(account, nobodys))
    assert p_value(list(map(units, others)), list(map(units, nobodys))) == 1.0
    assert all(one["surefoot"]["sources"] == {tier: LENGTH - C} for one in own)
    assert p_value(list(map(units, own)), list(map(units, others))) < 0.001


def test_a_tenants_salt_gives_another_key_nothing(tmp_path):
    [prompt] = prompts(1)
    with housed(tmp_path, api_keys=KEYS) as house:
        cold = ask(house, prompt, A, cache_salt="a's own")
        for fields in ({"cache_salt": "a's own"}, {}, {"cache_salt": "b"}):
            found = ask(house, prompt, B, **fields)
            assert found["surefoot"]["restored_tokens"] == 0
            assert found["surefoot"]["miss_reason"] == "cold"
            assert found["surefoot"]["common_prefix_tokens"] == 0
            assert found["choices"] == cold["choices"]
        # What b made under that salt is b's, and a's is a's.
        for headers in (A, B):
            again = ask(house, prompt, headers, cache_salt="a's own")
            assert again["surefoot"]["restored_tokens"] == LENGTH - C
        assert ask(house, prompt, A)["surefoot"]["restored_tokens"] == 0


def test_without_keys_salts_separate_and_whoever_knows_one_shares_it(tmp_path):
    [prompt] = prompts(1)
    with housed(tmp_path) as house:
        ask(house, prompt, None, cache_salt="one")
        assert ask(house, prompt, None)["surefoot"]["restored_tokens"] == 0
        assert ask(house, prompt, None, cache_salt="two")["surefoot"]["restored_tokens"] == 0
        shared = ask(house, prompt, None, cache_salt="one")
        assert shared["surefoot"]["restored_tokens"] == LENGTH - C


@pytest.mark.long
def test_times_of_a_live_server_tell_a_warm_prefix_of_ones_own_and_report_anothers(
    tmp_path, capsys
):
    # RAM alone: the fastest hit is the one that would show.
    flags = ["--store", "off", "--threads", "1", *(f"--api-key={key}" for key in KEYS)]
    samples = {"another's": [], "nobody's": [], "own": []}
    with (
        ServerProcess("spark", tmp_path / "log", flags) as process,
        httpx.Client(base_url=process.client.url, trust_env=False, timeout=60) as client,
    ):

        def seconds(prompt, headers):
            body = {"model": "spark", "prompt": prompt, "max_tokens": 1}
            began = time.perf_counter()
            response = client.post("/v1/completions", json=body, headers=headers)
            took = time.perf_counter() - began
            assert response.status_code == 200, response.text
            return took

        every = prompts(2 * PAIRS, vocabulary=64, length=80)
        for prompt in every[:PAIRS]:
            seconds(prompt, A)
        for at, (theirs, new) in enumerate(zip(every[:PAIRS], every[PAIRS:], strict=True)):
            asked = [("another's", theirs, B), ("nobody's", new, B), ("own", theirs, A)]
            for name, prompt, headers in asked if at % 2 else reversed(asked):
                samples[name].append(seconds(prompt, headers))
    medians = {name: statistics.median(sample) for name, sample in samples.items()}
    p_other = p_value(samples["another's"], samples["nobody's"])
    p_own = p_value(samples["own"], samples["nobody's"])
    with capsys.disabled():
        shown = ", ".join(f"{name} {1000 * one:.2f} ms" for name, one in medians.items())
        print(f"\n{PAIRS} pairs, medians: {shown}; p of another's {p_other:.3f}, own {p_own:.4f}")
    assert p_own < 0.001
