"""What the probe learns of a server before its legs, on servers whose truth is known."""

import asyncio

import pytest

from surefoot.errors import CapacityError, RequestError
from surefoot.probe.acquaint import LENGTHS, acquaint
from surefoot.probe.asking import Asker
from surefoot.probe.plants import Plants
from surefoot.probe.trail import Budget, Role, Trail
from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_server import BrokenTransport, Front, VirtualClock


def learned(behaviour=None, fault=None, *, model=None, keys=(), seed=1):
    """Return facts, tasks, what was told, and the trail, of one broken or honest server."""
    clock = VirtualClock()
    told = {}

    async def go():
        front = Front(fault, behaviour, pass_time=clock.pass_time)
        async with Asker(
            "http://broken/v1",
            keys=keys,
            clock=clock.now,
            sleep=clock.pass_time,
            transport=BrokenTransport(front, clock.pass_time),
        ) as asker:
            trail = Trail(
                asker, Plants(seed), Budget(10**9, 1e9, 0.0), lambda _: None, [], name="start"
            )
            facts, tasks = await acquaint(trail, model=model, told=told.__setitem__)
            return facts, tasks, trail

    facts, tasks, trail = asyncio.run(go())
    return facts, tasks, told, trail


def test_a_plain_server_is_known_for_what_it_is():
    facts, _tasks, told, trail = learned(Behaviour(block_tokens=16))
    assert facts.counters == ("cached_tokens",)
    assert facts.block_tokens is not None
    assert facts.block_tokens % 16 == 0
    assert facts.context_tokens == 8192
    assert facts.length == LENGTHS[0]
    assert facts.salts
    assert facts.images
    assert facts.repeats
    assert facts.noise_nat == 0
    assert facts.way_round is not None
    assert facts.notes == told
    # Its cold exchanges are controls, and were cold.
    cold = trail.of(Role.COLD)
    assert len(trail.controls) == len(cold) > 0
    assert all(not any(seen.reply.counters.values()) for seen in cold)


@pytest.mark.parametrize("block", [16, 64, 128, 256])
@pytest.mark.parametrize("seed", range(1, 7))
def test_the_size_of_a_block_is_learned_from_all_that_was_reused(block, seed):
    """Prompts of a few lengths may all end in the same block, and tell a multiple only."""
    facts, *_ = learned(Behaviour(block_tokens=block), seed=seed)
    assert facts.block_tokens == block


def test_a_text_of_so_many_tokens_has_about_so_many():
    *_, trail = learned()
    first = trail.of(Role.COLD)[1]
    assert first.reply.prompt_tokens == pytest.approx(LENGTHS[0], rel=0.1)


@pytest.mark.parametrize(
    ("behaviour", "fact", "value"),
    [
        ({"offers_logprobs": False}, "noise_nat", None),
        ({"offers_counters": False}, "counters", ()),
        ({"knows_salts": False}, "salts", False),
        ({"knows_salts": False}, "way_round", None),
        ({"sees_images": False}, "images", False),
        ({"repeats": False}, "repeats", False),
        ({"block_tokens": 1024}, "length", LENGTHS[1]),
    ],
)
def test_what_a_server_lacks_is_noticed(behaviour, fact, value):
    facts, *_ = learned(Behaviour(**behaviour))
    assert getattr(facts, fact) == value


def test_noise_is_measured():
    facts, *_ = learned(Behaviour(jitter=0.02))
    assert 0 < facts.noise_nat <= 0.1


@pytest.mark.parametrize("fault", [Fault.SALT_IGNORED, Fault.SALT_IGNORED_ON_DISK])
def test_a_salt_that_does_not_part_is_no_way_round(fault):
    facts, *_ = learned(fault=fault)
    assert facts.salts
    assert facts.way_round is None or fault is Fault.SALT_IGNORED_ON_DISK


def test_a_refused_key_and_an_unknown_model_are_the_callers_to_mend():
    locked = Behaviour(api_keys=("right",))
    with pytest.raises(RequestError, match="--api-key"):
        learned(locked, keys=("wrong",))
    with pytest.raises(RequestError, match="--api-key"):
        learned(locked)
    assert learned(locked, keys=("right",))[0].counters


def test_a_server_that_answers_nothing_is_an_error_of_capacity():
    clock = VirtualClock()

    async def go():
        class Down(BrokenTransport):
            async def handle_async_request(self, request):
                import httpx

                raise httpx.ConnectError("refused")

        front = Front(pass_time=clock.pass_time)
        async with Asker(
            "http://down/v1", clock=clock.now, transport=Down(front, clock.pass_time)
        ) as asker:
            trail = Trail(asker, Plants(1), Budget(10**9, 1e9, 0.0), lambda _: None, [])
            await acquaint(trail, model=None, told=lambda *_: None)

    with pytest.raises(CapacityError):
        asyncio.run(go())
