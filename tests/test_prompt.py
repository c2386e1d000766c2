"""Prompts and their grid, against a slow oracle, over every small prompt.

The grid is what makes two computations of one prefix the same calls (I5): it may depend on nothing
but the tokens before an end, and it keeps an atomic span inside one block.
"""

import itertools

import pytest

from surefoot.prompt import MediaName, MediaSpan, Prompt, grid, pack_tokens, unpack_tokens

TOKENS_MAX = 9
BLOCKS = range(1, 6)
A = MediaName(b"a")


def layouts(start, n):
    """Yield every way to lay disjoint spans over positions ``[start, n)``."""
    yield ()
    for first in range(start, n):
        for length in range(1, n - first + 1):
            for rest in layouts(first + length, n):
                yield (MediaSpan(first, length, A), *rest)


LAYOUTS = {n: tuple(layouts(0, n)) for n in range(TOKENS_MAX + 1)}


def prompts():
    for n, every in LAYOUTS.items():
        for media in every:
            yield Prompt.of(range(n), media)


def slow_grid(prompt, block_tokens, atomic):
    """Walk token by token: an end falls on a multiple that no atomic span is open across."""
    ends, owed = [], False
    for end in range(1, len(prompt) + 1):
        owed = owed or end % block_tokens == 0
        cut = any(span.start < end < span.end for span in prompt.media)
        if owed and not (atomic and cut):
            ends.append(end)
            owed = False
    return tuple(ends)


@pytest.mark.parametrize("atomic", [False, True])
def test_the_grid_is_the_slow_grid(atomic):
    for prompt, block_tokens in itertools.product(prompts(), BLOCKS):
        assert grid(prompt, block_tokens, atomic=atomic) == slow_grid(prompt, block_tokens, atomic)


def test_ends_ascend_strictly_and_lie_inside_the_prompt():
    for prompt, block_tokens in itertools.product(prompts(), BLOCKS):
        ends = (0, *grid(prompt, block_tokens, atomic=True))
        assert all(one < two for one, two in itertools.pairwise(ends))
        assert ends[-1] <= len(prompt)


def test_an_end_never_cuts_an_atomic_span():
    for prompt, block_tokens in itertools.product(prompts(), BLOCKS):
        for end in grid(prompt, block_tokens, atomic=True):
            assert not any(span.start < end < span.end for span in prompt.media)


def prefix(prompt, end):
    """Return what a prompt looks like up to ``end``, whole spans that begin before it included."""
    return prompt.tokens(0, end), [span for span in prompt.media if span.start < end]


def check_shared_prefixes(rule):
    """Group all prompts by what they look like up to m: one list of ends <= m per group."""
    for block_tokens in (2, 3, 4):
        ends_of = {}
        for prompt in prompts():
            ends = rule(prompt, block_tokens)
            for m in range(len(prompt) + 1):
                shared = tuple(end for end in ends if end <= m)
                assert ends_of.setdefault((m, repr(prefix(prompt, m))), shared) == shared


def test_prompts_that_share_a_prefix_share_its_ends():  # I5
    check_shared_prefixes(lambda prompt, block_tokens: grid(prompt, block_tokens, atomic=True))


def to_the_start(prompt, block_tokens):
    """Move an end inside a span back to the span's start."""
    ends = set()
    for end in range(block_tokens, len(prompt) + 1, block_tokens):
        inside = [span.start for span in prompt.media if span.start < end < span.end]
        ends.add(inside[0] if inside else end)
    return tuple(sorted(ends - {0}))


def in_equal_shares(prompt, block_tokens):
    """Cut a prompt into blocks of one length: how many depends on the whole prompt."""
    blocks = -(-len(prompt) // block_tokens)
    return tuple(len(prompt) * n // blocks for n in range(1, blocks + 1))


@pytest.mark.parametrize("rule", [to_the_start, in_equal_shares])
def test_the_enumeration_rejects_a_grid_that_looks_ahead(rule):
    with pytest.raises(AssertionError):
        check_shared_prefixes(rule)


def test_spans_that_are_not_atomic_do_not_move_the_grid():
    for prompt, block_tokens in itertools.product(prompts(), BLOCKS):
        assert grid(prompt, block_tokens) == grid(Prompt(prompt.ids), block_tokens, atomic=True)


def test_the_tail_is_shorter_than_a_block_unless_a_span_is_open():
    for prompt, block_tokens in itertools.product(prompts(), BLOCKS):
        ends = (0, *grid(prompt, block_tokens))
        assert len(prompt) - ends[-1] < block_tokens


@pytest.mark.parametrize("block_tokens", [0, -1])
def test_a_grid_needs_a_step(block_tokens):
    with pytest.raises(AssertionError):
        grid(Prompt.of(range(4)), block_tokens)


TOKENS = (0, 1, 255, 256, 65536, 2**31, 2**32 - 1)


def test_tokens_come_back_as_they_went_in():
    prompt = Prompt.of(TOKENS)
    assert prompt.tokens() == list(TOKENS)
    assert unpack_tokens(pack_tokens(TOKENS)) == list(TOKENS)
    for start, end in itertools.combinations_with_replacement(range(len(TOKENS) + 1), 2):
        assert prompt.tokens(start, end) == list(TOKENS[start:end])
    assert prompt.tokens(2) == list(TOKENS[2:])


@pytest.mark.parametrize("kind", [tuple, list, bytes, bytearray, iter])
def test_tokens_are_integers_whatever_holds_them(kind):
    assert pack_tokens(kind([1, 2, 3, 4])) == pack_tokens((1, 2, 3, 4))


def test_tokens_are_little_endian_32_bit():
    assert pack_tokens((1, 2**32 - 2)) == b"\1\0\0\0\xfe\xff\xff\xff"


def test_a_big_endian_machine_packs_the_same_bytes(monkeypatch):
    native = pack_tokens(TOKENS)
    monkeypatch.setattr("sys.byteorder", "big")
    swapped = b"".join(native[at : at + 4][::-1] for at in range(0, len(native), 4))
    assert pack_tokens(TOKENS) == swapped  # this machine's array is not big-endian: it is turned
    assert unpack_tokens(swapped) == list(TOKENS)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_outside_32_bits_is_refused(token):
    with pytest.raises(OverflowError):
        Prompt.of((token,))


@pytest.mark.parametrize(
    "media",
    [
        (MediaSpan(0, 3, A), MediaSpan(2, 1, A)),
        (MediaSpan(2, 1, A), MediaSpan(0, 1, A)),
        (MediaSpan(3, 2, A),),
        (MediaSpan(4, 1, A),),
    ],
    ids=["overlapping", "unsorted", "over the edge", "outside"],
)
def test_spans_are_sorted_disjoint_and_inside_the_prompt(media):
    with pytest.raises(AssertionError):
        Prompt.of(range(4), media)


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 0), (0, -1)])
def test_a_span_covers_tokens(start, length):
    with pytest.raises(AssertionError):
        MediaSpan(start, length, A)


def test_spans_may_touch_each_other_and_the_edge():
    prompt = Prompt.of(range(4), (MediaSpan(0, 2, A), MediaSpan(2, 2, A)))
    assert [span.end for span in prompt.media] == [2, 4]


@pytest.mark.parametrize("ids", [b"\0", b"\0" * 5, b"\0" * 7])
def test_ids_hold_whole_tokens(ids):
    with pytest.raises(AssertionError):
        Prompt(ids)


def test_a_leading_part_keeps_what_stands_there_of_the_media():
    media = (MediaSpan(1, 3, b"a"), MediaSpan(6, 2, b"b"))
    whole = Prompt.of(range(10), media)
    for end in range(11):
        part = whole.upto(end)
        assert part.tokens() == list(range(end))
        covered = {(at, s.media) for s in part.media for at in range(s.start, s.end)}
        wanted = {(at, s.media) for s in media for at in range(s.start, s.end) if at < end}
        assert covered == wanted


def test_bytes_are_integers_and_not_memory():
    assert Prompt.of(b"\x01\x02\x03").tokens() == [1, 2, 3]
