"""The broken server's keys: whole without a fault; with one, they lack what its line says."""

import asyncio

import pytest
from broken_client import TEXT, Server, picture, secret, user

from surefoot.testing.broken_faults import Fault
from surefoot.testing.broken_keys import contents_told, root_told
from surefoot.testing.broken_prompt import PATCHES, rendered


async def reuse_across_salts(server, one, two):
    messages = secret("483920")
    first = await server.ask(messages, cache_salt=one)
    same = await server.ask(messages, cache_salt=one)
    other = await server.ask(messages, cache_salt=two)
    assert first.bits == same.bits == other.bits
    assert same.cached
    return bool(other.cached)


ANY_SALTS = ("a", "b")
LONG_SALTS = ("organisation-7/user-1", "organisation-7/user-2")
CASED_SALTS = ("kR9xQ", "Kr9Xq")


@pytest.mark.parametrize(
    ("fault", "shared"),
    [
        (None, ()),
        (Fault.SALT_IGNORED, (ANY_SALTS, LONG_SALTS, CASED_SALTS)),
        (Fault.SALT_IGNORED_ON_DISK, (ANY_SALTS, LONG_SALTS, CASED_SALTS)),
        (Fault.SALT_FIRST_16_CHARACTERS, (LONG_SALTS,)),
        (Fault.SALT_CASE_FOLDED, (CASED_SALTS,)),
    ],
)
@pytest.mark.parametrize("salts", [ANY_SALTS, LONG_SALTS, CASED_SALTS])
def test_only_where_a_salt_or_a_part_of_it_is_ignored_do_tenants_share(fault, shared, salts):
    assert asyncio.run(reuse_across_salts(Server(fault), *salts)) is (salts in shared)


def tools(*descriptions):
    looks = [{"name": "look", "description": one} for one in descriptions]
    return [{"type": "function", "function": one} for one in looks]


def test_unbroken_a_key_holds_every_token_whole():
    messages = [user(picture("red"), TEXT, picture("blue"))]
    prompt = rendered(messages, tools=tools("Looks up."))
    told = contents_told(prompt, None, {})
    assert root_told(prompt, None) == (0, ())
    assert len(told) == len(prompt.tokens)
    assert len({one for one in told if isinstance(one, tuple)}) == 2 * PATCHES


@pytest.mark.parametrize(
    ("fault", "root"),
    [(Fault.TOOLS_IGNORED_IN_KEY, ()), (Fault.TOOLS_KEYED_BY_NAMES, ("look", "look"))],
)
def test_what_stands_for_the_tools_says_nothing_of_what_they_do(fault, root):
    one, other = (rendered([user(TEXT)], tools=tools("Up.", said)) for said in ("Left.", "Right."))
    assert root_told(one, fault) == root_told(other, fault) == (one.preface, root)
    assert root_told(rendered([user(TEXT)]), fault) == (0, ())


def test_a_number_for_a_picture_is_counted_from_nothing_by_every_process():
    prompts = [rendered([user(picture(colour), TEXT)]) for colour in ("red", "blue")]
    fault = Fault.PICTURE_NUMBER_AFTER_RESTART
    numbers = {}
    one, other = (contents_told(prompt, fault, numbers) for prompt in prompts)
    assert one != other
    assert contents_told(prompts[1], fault, {}) == one


def test_the_first_picture_is_known_wherever_it_stands_again():
    red, blue = picture("red"), picture("blue")
    prompt = rendered([user(red, blue, red)])
    told = contents_told(prompt, Fault.KEY_FIRST_PICTURE_ONLY, {})
    patches = [one for one in told if isinstance(one, tuple)]
    first, second, third = (patches[at : at + PATCHES] for at in range(0, 3 * PATCHES, PATCHES))
    assert first == third != second
