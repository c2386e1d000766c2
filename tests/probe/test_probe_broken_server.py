"""The broken server: unbroken it is exact; each fault does what its line says, and nothing else."""

import asyncio
import io

import httpx
import pytest
from broken_client import (
    ASKS,
    CHAT,
    COLOUR,
    PATIENCE_S,
    SIZE,
    TEXT,
    Server,
    assistant,
    picture,
    secret,
    shown,
    system,
    tails,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from surefoot.testing.broken_engine import COMPUTE_S, RESTORE_S
from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_prompt import COLOURS
from surefoot.testing.broken_state import UNKNOWN
from surefoot.testing.broken_store import LOST_BEYOND

# --- unbroken ------------------------------------------------------------------------------------

PICTURES = [picture("red"), picture("blue"), picture("red", 6, 4), picture("red", 4, 6)]
OPENINGS = [
    system(f"The secret code is 483920. {TEXT * 2}"),
    system(f"The secret code is 719305. {TEXT * 2}"),
    system(TEXT * 3),
    user(f"{TEXT} Look.", PICTURES[0]),
    user(f"{TEXT} Look.", PICTURES[1]),
    user(f"{TEXT} Look."),
]
MIDDLES = [
    (),
    (user("My code is 260481. Remember it."), assistant("I do.")),
    (user(PICTURES[2], "Look at this."), assistant("Yes.")),
    (user(PICTURES[3], "Look at this."), assistant("Yes.")),
]
LASTS = [
    user(ASKS),
    user("What is my code?"),
    user(COLOUR),
    user(PICTURES[0], PICTURES[1], "What color is the second image?"),
    user(PICTURES[1], PICTURES[0], "What color is the second image?"),
    user(SIZE),
    user("Tell me a story."),
]
CONVERSATIONS = st.builds(
    lambda opening, middle, last: [opening, *middle, last],
    st.sampled_from(OPENINGS),
    st.sampled_from(MIDDLES),
    st.sampled_from(LASTS),
)
TOOLS = [None, [{"type": "function", "function": {"name": "one"}}]]
REQUESTS = st.fixed_dictionaries(
    {
        "messages": CONVERSATIONS,
        "cache_salt": st.sampled_from([None, "a", "b"]),
        "tools": st.sampled_from(TOOLS),
        "chat_template_kwargs": st.sampled_from([{}, {"enable_thinking": True}]),
        "leave": st.sampled_from([None, None, None, 1]),
    }
)
STEPS = st.lists(st.one_of(st.just("restart"), st.lists(REQUESTS, min_size=1, max_size=3)))


@settings(max_examples=60)
@given(STEPS, st.sampled_from([16, 64]))
def test_unbroken_every_answer_is_the_cold_one_whatever_came_before(steps, block):
    async def run():
        server = Server(None, Behaviour(block_tokens=block, ram_tokens=block * 6))
        for step in steps:
            if step == "restart":
                server.front.restart()
                continue
            heard = await asyncio.gather(*(server.ask(**request) for request in step))
            for request, got in zip(step, heard, strict=True):
                assert got.bits == (await server.cold(**request)).bits

    asyncio.run(run())


@pytest.mark.parametrize("block", [16, 64])
def test_unbroken_a_prompt_of_any_length_is_restored_below_its_last_token(block):
    async def run():
        server = Server(None, Behaviour(block_tokens=block))
        for words in range(2 * block + 2):
            messages = [user(f"Go on {'very ' * words}long.")]
            cold = await server.ask(messages, cache_salt=str(words))
            warm = await server.ask(messages, cache_salt=str(words))
            assert warm.bits == cold.bits
            assert cold.cached == 0
            assert warm.cached == (warm.prompt - 1) // block * block

    asyncio.run(run())


def test_unbroken_the_newest_statement_of_the_asked_kind_wins():
    async def run():
        server = Server()
        told = [system("The secret code is 483920. My code is 260481."), user("Hello.")]
        told += [assistant("Hello."), user("The secret code is 719305."), assistant("OK")]
        assert (await server.ask([*told, user(ASKS)])).text == "719305"
        assert (await server.ask([*told, user("What is my code?")])).text == "260481"
        assert (await server.ask([user(ASKS)])).text == UNKNOWN

    asyncio.run(run())


@pytest.mark.parametrize("colour", COLOURS)
def test_unbroken_it_names_the_colour_that_most_of_a_picture_has(colour):
    image = Image.new("RGB", (20, 10), colour)
    image.paste((7, 99, 200), (0, 0, 5, 10))
    data = io.BytesIO()
    image.save(data, "PNG")

    async def run():
        assert (await Server().ask([user(shown(data.getvalue()), COLOUR)])).text == colour

    asyncio.run(run())


def test_unbroken_it_tells_pictures_apart_by_place_and_shape():
    async def run():
        server = Server()
        two = picture("red"), picture("blue")
        for images, first, second in ((two, "Red", "Blue"), (two[::-1], "Blue", "Red")):
            for which, colour in (("first", first), ("second", second)):
                asked = user(*images, f"What color is the {which} image?")
                assert (await server.ask([asked])).text == colour
        assert (await server.ask([user(picture("red", 6, 4), SIZE)])).text == "Wide"
        assert (await server.ask([user(picture("red", 4, 6), SIZE)])).text == "Tall"
        taller = "Is the image wider or taller?"
        assert (await server.ask([user(picture("red", 4, 6), taller)])).text == "Taller"
        assert (await server.ask([user(COLOUR)])).text == UNKNOWN

    asyncio.run(run())


def test_unbroken_a_hit_is_faster_by_what_was_not_computed():
    async def run():
        server = Server()
        cold, warm = [await server.ask(secret("483920")) for _ in range(2)]
        saved = warm.cached * (COMPUTE_S - RESTORE_S)
        assert cold.ttft_s - warm.ttft_s == pytest.approx(saved)

    asyncio.run(run())


# --- each fault ----------------------------------------------------------------------------------


async def second_picture(server):
    said = [user(f"{TEXT} Look."), assistant("Yes.")]
    await server.ask([*said, user(picture("red"), TEXT * 4 + COLOUR)])
    other = [*said, user(picture("blue"), TEXT * 4 + COLOUR)]
    return [(await server.ask(other), await server.cold(other))]


async def same_bytes(server):
    wide = [user(picture("red", 6, 4), SIZE)]
    tall = [user(picture("red", 4, 6), SIZE)]
    await server.ask(wide)
    return [(await server.ask(tall), await server.cold(tall))]


async def leaves_early(server):
    long, short = tails("aaa", "483920", "719305")
    await server.ask(long)
    return [(await server.ask(short), await server.cold(short)) for _ in range(2)]


async def replay(server):
    messages = secret("483920")
    await server.ask(messages)
    return [(await server.ask(messages), await server.cold(messages))]


async def replays_of_every_length(server):
    pairs = []
    for words in range(16):
        messages = [user(f"The secret code is 483920. {words} {'very ' * words} {TEXT * 2} {ASKS}")]
        cold = await server.ask(messages)
        assert cold.bits == (await server.cold(messages)).bits
        pairs.append((await server.ask(messages), cold))
    return pairs


async def at_once(server):
    one, other = tails("aaa", "483920", "719305")
    preamble = [one[0], user("Hello.")]
    await server.ask(preamble)
    heard = await asyncio.gather(server.ask(one), server.ask(other))
    return [(heard[0], await server.cold(one)), (heard[1], await server.cold(other))]


async def after_restart(server):
    sessions = [secret(code, name) for code, name in (("483920", "aaa"), ("719305", "bbb"))]
    for messages in sessions:
        await server.ask(messages)
    server.front.restart()
    return [(await server.ask(messages), await server.cold(messages)) for messages in sessions]


async def left_and_asked_again(server):
    messages = secret("483920")
    await server.ask(messages, leave=1)
    return [(await server.ask(messages), await server.cold(messages))]


async def many_sessions(server):
    sessions = [secret(code, f"file {code}", 50) for code in SESSION_CODES]
    colds = [await server.ask(messages) for messages in sessions]
    for messages, cold in zip(sessions, colds, strict=True):
        assert cold.bits == (await server.cold(messages)).bits
    return [(await server.ask(m), cold) for m, cold in zip(sessions, colds, strict=True)]


async def other_tools(server):
    def tool(code):
        said = f"The secret code is {code}."
        return [{"type": "function", "function": {"name": "look", "description": said}}]

    messages = [system(TEXT * 4), user(ASKS)]
    await server.ask(messages, tools=tool("483920"))
    again = {"tools": tool("719305")}
    return [(await server.ask(messages, **again), await server.cold(messages, **again))]


async def without_tools(server):
    tools = [{"type": "function", "function": {"name": "look"}}]
    messages = secret("483920")
    await server.ask(messages, tools=tools)
    return [(await server.ask(messages), await server.cold(messages))]


async def thinking_off(server):
    def think(on):
        return {"chat_template_kwargs": {"enable_thinking": on}}

    messages = secret("483920")
    await server.ask(messages, **think(True))
    return [(await server.ask(messages, **think(False)), await server.cold(messages))]


async def picture_removed(server):
    with_image = [user(picture("red"), TEXT * 4), assistant("Yes."), user(COLOUR)]
    await server.ask(with_image)
    without = [user(TEXT * 4), *with_image[1:]]
    return [(await server.ask(without), await server.cold(without))]


async def long_replay(server):
    messages = secret("483920", sentences=140)
    assert (await server.ask(messages)).prompt > LOST_BEYOND
    return [(await server.ask(messages), await server.cold(messages))]


SESSION_CODES = [str(311_742 + 7_919 * session) for session in range(8)]
UNLIKE = "anything that the cold answer is not"
# What each fault's walk must end in, at least once; the walk is exact on an unbroken server.
WALKS = [
    (Fault.KEY_IGNORES_MEDIA, second_picture, ["Red"]),
    (Fault.DIGEST_IGNORES_DIMENSIONS, same_bytes, ["Wide"]),
    (Fault.DONOR_LENGTH, leaves_early, ["483920"]),
    (Fault.WRONG_BOUNDARY, replay, UNLIKE),
    (Fault.LAST_TOKEN_TWICE, replays_of_every_length, UNLIKE),
    (Fault.SHARED_ENTRY, at_once, ["719305"]),
    (Fault.STALE_AFTER_RESTART, after_restart, ["719305"]),
    (Fault.OTHER_WEIGHTS, after_restart, UNLIKE),
    (Fault.POISONED, left_and_asked_again, UNLIKE),
    (Fault.EVICTED_MIXUP, many_sessions, SESSION_CODES),
    (Fault.TOOLS_IGNORED_IN_KEY, other_tools, ["483920"]),
    (Fault.TOOLS_IGNORED_IN_KEY, without_tools, UNLIKE),
    (Fault.THINKING_IGNORED_IN_KEY, thinking_off, UNLIKE),
    (Fault.REMOVED_IMAGE_KEPT, picture_removed, ["Red"]),
    (Fault.WINDOW_LOST, long_replay, [UNKNOWN]),
    (Fault.EMPTY_ON_HIT, replay, [""]),
]
WALKED = [pytest.param(*one, id=f"{one[0]} by {one[1].__name__}") for one in WALKS]


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(("fault", "walk", "said"), WALKED)
def test_a_fault_changes_the_warm_answer_as_its_line_says(fault, walk, said, block):
    async def run():
        pairs = await walk(Server(fault, Behaviour(block_tokens=block)))
        wrong = [got.text for got, want in pairs if got.text != want.text]
        assert wrong
        assert said == UNLIKE or any(one in said for one in wrong)
        assert any(got.logprobs != want.logprobs for got, want in pairs)

    asyncio.run(run())


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("walk", dict.fromkeys(one[1] for one in WALKS))
def test_without_a_fault_the_same_walks_are_exact(walk, block):
    async def run():
        pairs = await walk(Server(None, Behaviour(block_tokens=block)))
        if walk is thinking_off:  # its cold reference has no tag at all
            assert [got.text for got, _ in pairs] == [want.text for _, want in pairs]
            return
        assert [got.bits for got, _ in pairs] == [want.bits for _, want in pairs]

    asyncio.run(run())


@pytest.mark.parametrize("fault", Fault)
def test_whatever_the_fault_fresh_prompts_are_answered_right(fault):
    async def run():
        server = Server(fault)
        for number, code in enumerate(("483920", "719305", "260481")):
            messages = secret(code, "abc"[number], 5 + 60 * number)
            assert (await server.ask(messages)).bits == (await server.cold(messages)).bits
            colour = ("red", "green", "blue")[number]
            messages = [user(f"{'abc'[number]} {TEXT}", picture(colour, 5 + number, 9), COLOUR)]
            assert (await server.ask(messages)).bits == (await server.cold(messages)).bits

    asyncio.run(run())


def test_a_wrong_recurrent_state_garbles_a_code_into_nobodys_and_moves_logprobs_by_nats():
    async def run():
        ((got, want),) = await replay(Server(Fault.WRONG_BOUNDARY))
        assert len(got.text) == 6
        assert all(one != other for one, other in zip(got.text, want.text, strict=True))
        first = {
            one["token"]: one["logprob"] for one in got.logprobs[0]["content"][0]["top_logprobs"]
        }
        top = want.logprobs[0]["content"][0]["top_logprobs"]
        moved = [abs(first[one["token"]] - one["logprob"]) for one in top if one["token"] in first]
        assert max(moved, default=9) > 0.5

    asyncio.run(run())


async def reuse_across_salts(server):
    messages = secret("483920")
    first = await server.ask(messages, cache_salt="a")
    same = await server.ask(messages, cache_salt="a")
    other = await server.ask(messages, cache_salt="b")
    assert first.bits == same.bits == other.bits
    assert same.cached
    return other.cached


@pytest.mark.parametrize(
    ("fault", "shared"),
    [(None, False), (Fault.SALT_IGNORED, True), (Fault.SALT_IGNORED_ON_DISK, True)],
)
def test_only_where_a_salt_is_ignored_do_tenants_share(fault, shared):
    assert bool(asyncio.run(reuse_across_salts(Server(fault)))) is shared


def test_a_counter_that_is_too_high_tells_of_hits_that_took_no_less_time():
    async def run():
        server = Server(Fault.COUNTER_TOO_HIGH)
        first, again = [await server.ask(secret("483920")) for _ in range(2)]
        assert again.cached > 0
        assert again.ttft_s == pytest.approx(first.ttft_s)
        assert again.bits == first.bits

    asyncio.run(run())


def test_a_counter_of_zero_hides_a_hit_that_time_shows():
    async def run():
        server = Server(Fault.COUNTER_ZERO)
        first, again = [await server.ask(secret("483920")) for _ in range(2)]
        assert again.cached == 0
        assert again.ttft_s < first.ttft_s / 2
        assert again.bits == first.bits

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_hit_that_hangs_ends_in_a_read_timeout_after_the_clients_patience(stream):
    async def run():
        server = Server(Fault.HANGS_ON_HIT)
        await server.ask(secret("483920"))
        started = server.clock.now()
        body = {"messages": secret("483920"), "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            await server.client.post(CHAT, json=body)
        assert server.clock.now() - started >= PATIENCE_S

    asyncio.run(run())
