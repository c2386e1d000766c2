"""The broken server without a fault: exact to the last digit, whatever came before."""

import asyncio
import io

import pytest
from broken_client import (
    ASKS,
    COLOUR,
    SIZE,
    TEXT,
    Server,
    assistant,
    picture,
    secret,
    shown,
    system,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from surefoot.testing.broken_engine import COMPUTE_S, RESTORE_S
from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_prompt import COLOURS
from surefoot.testing.broken_state import UNKNOWN

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
