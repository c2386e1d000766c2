"""The broken server with a fault: each does what its line says, and nothing else."""

import asyncio

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
    system,
    tails,
    user,
)

from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_state import UNKNOWN
from surefoot.testing.broken_store import DONOR_BEYOND, LOST_BEYOND

# --- what is asked -------------------------------------------------------------------------------


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


async def asked_twice(server, texts):
    pairs = []
    for text in texts:
        messages = [user(text)]
        cold = await server.ask(messages)
        assert cold.bits == (await server.cold(messages)).bits
        pairs.append((await server.ask(messages), cold))
    return pairs


async def replays_of_every_length(server):
    said = "The secret code is 483920."
    texts = (f"{said} {words} {'very ' * words} {TEXT * 2} {ASKS}" for words in range(16))
    return await asked_twice(server, texts)


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


async def answers_sent_back(server):
    chat, pairs = [system(TEXT * 2), user(STORY)], []
    for _ in range(4):
        got = await server.ask(chat)
        pairs.append((got, await server.cold(chat)))
        chat += [assistant(got.text), user(STORY)]
    return pairs


async def leaves_early_far_in(server):
    shared = system(TEXT * 64)
    long, short = (
        [shared, user(f"The secret code is {code}. {TEXT * more} {ASKS}")]
        for code, more in (("483920", 8), ("719305", 1))
    )
    await server.ask(long)
    cold = await server.cold(short)
    assert cold.prompt > DONOR_BEYOND
    return [(await server.ask(short), cold) for _ in range(2)]


async def second_of_two_pictures(server):
    def asked(colour):
        about = f"{TEXT * 4} What color is the second image?"
        return [system(TEXT), user(picture("red"), picture(colour), about)]

    await server.ask(asked("green"))
    return [(await server.ask(asked("blue")), await server.cold(asked("blue")))]


async def goes_back(server):
    short = secret("483920")
    told = f"The secret code is 719305. {TEXT * 8} {ASKS}"
    await server.ask([*short, assistant("483920"), user(told)])
    return [(await server.ask(short), await server.cold(short))]


async def pictures_over_a_restart(server):
    red, blue = ([user(picture(one), TEXT * 4 + COLOUR)] for one in ("red", "blue"))
    await server.ask(red)
    server.front.restart()
    return [(await server.ask(blue), await server.cold(blue))]


async def shared_and_evicted(server):
    def asked(opening):
        return [system(f"The secret code is 260481. {TEXT * 20}"), user(f"{opening} {ASKS}")]

    await server.ask(asked("First:"))
    await server.ask(asked("Second:"))
    await many_sessions(server)
    return [(await server.ask(asked("Third:")), await server.cold(asked("Third:")))]


async def strangers_at_once(server):
    one, other = secret("483920", "aaa", 20), secret("719305", "bbb", 60)
    heard = await asyncio.gather(server.ask(one), server.ask(other))
    return [(heard[0], await server.cold(one)), (heard[1], await server.cold(other))]


async def eight_at_once(server):
    shared = system(TEXT * 6)
    await server.ask([shared, user("Hello.")])
    asked = [
        [shared, user(f"The secret code is {code}. {TEXT * (8 - more)} {ASKS}")]
        for more, code in enumerate(SESSION_CODES)
    ]
    heard = await asyncio.gather(*(server.ask(messages) for messages in asked))
    return [(got, await server.cold(m)) for got, m in zip(heard, asked, strict=True)]


async def long_answers(server):
    return await asked_twice(server, (f"{more} {TEXT * more * 4} {STORY}" for more in range(1, 9)))


async def left_in_a_story(server):
    messages = [user(f"{TEXT * 6} {STORY}")]
    await server.ask(messages, leave=2)
    return [(await server.ask(messages), await server.cold(messages))]


STORY = "Tell me a story."
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
    (Fault.ANSWER_SHIFTED, answers_sent_back, UNLIKE),
    (Fault.DONOR_LENGTH_BEYOND_1024, leaves_early_far_in, ["483920"]),
    (Fault.KEY_FIRST_PICTURE_ONLY, second_of_two_pictures, ["Green"]),
    (Fault.TOOLS_KEYED_BY_NAMES, other_tools, ["483920"]),
    (Fault.REWOUND, goes_back, ["719305"]),
    (Fault.PICTURE_NUMBER_AFTER_RESTART, pictures_over_a_restart, ["Red"]),
    (Fault.EVICTED_WHILE_SHARED, shared_and_evicted, UNLIKE),
    (Fault.STRANGERS_IN_FLIGHT, strangers_at_once, UNLIKE),
    (Fault.SHARED_ENTRY_FROM_8, eight_at_once, SESSION_CODES),
    (Fault.LONG_ANSWER_OVERWRITES, long_answers, UNLIKE),
    (Fault.POISONED_IN_DECODE, left_in_a_story, UNLIKE),
]
# Walks that a narrow fault leaves exact, though one beside it does not.
SPARED = [
    (Fault.ANSWER_SHIFTED, goes_back),
    (Fault.DONOR_LENGTH_BEYOND_1024, leaves_early),
    (Fault.KEY_FIRST_PICTURE_ONLY, second_picture),
    (Fault.TOOLS_KEYED_BY_NAMES, without_tools),
    (Fault.REWOUND, leaves_early),
    (Fault.PICTURE_NUMBER_AFTER_RESTART, second_picture),
    (Fault.EVICTED_WHILE_SHARED, many_sessions),
    (Fault.STRANGERS_IN_FLIGHT, at_once),
    (Fault.SHARED_ENTRY_FROM_8, at_once),
    (Fault.LONG_ANSWER_OVERWRITES, replay),
    (Fault.POISONED_IN_DECODE, left_and_asked_again),
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


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(("fault", "walk"), SPARED)
def test_a_narrow_fault_spares_what_its_line_does_not_name(fault, walk, block):
    async def run():
        pairs = await walk(Server(fault, Behaviour(block_tokens=block)))
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
