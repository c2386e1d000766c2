"""Names: one name is one visible past (I1), and different salts share none (I9).

Small spaces are enumerated whole. Random pairs almost never come near a collision: at its default
100 examples a random version of this test let three of six wrong namers pass. ``WRONG`` keeps the
namers that the enumeration must reject; each was a plausible line of code once.
"""

import itertools
from struct import pack

import pytest
from blake3 import blake3

from surefoot import identity
from surefoot.identity import (
    Block,
    KeyId,
    ModelName,
    Salt,
    SpanSlice,
    feature_name,
    media_name,
    name_blocks,
    renames,
    root_name,
    salt_of,
)
from surefoot.prompt import MediaName, MediaSpan, Prompt, grid

B = 2
MODEL = ModelName(b"m" * 32)
OTHER_MODEL = ModelName(b"M" * 32)
SALT = salt_of(None, None)
TOKENS = (1, 11, 65537)  # 1 and 11 run together in decimal; 65537 is 1 in 16 bits
MEDIA = (MediaName(b"a"), MediaName(b"b"), MediaName(b"aa"))


def layouts(start, n, names=MEDIA):
    """Yield every way to lay disjoint media spans over positions ``[start, n)``."""
    yield ()
    for first in range(start, n):
        for length in range(1, n - first + 1):
            for name in names:
                for rest in layouts(first + length, n, names):
                    yield (MediaSpan(first, length, name), *rest)


def small_prompts(n_max=2 * B, tokens=TOKENS, names=MEDIA):
    """Yield every prompt of at most ``n_max`` tokens."""
    for n in range(n_max + 1):
        spans = tuple(layouts(0, n, names))
        for ids in itertools.product(tokens, repeat=n):
            for media in spans:
                yield Prompt.of(ids, media)


def cuts(n):
    """Yield every ascending list of block ends inside ``n`` tokens, moved ends included."""
    for count in range(n + 1):
        yield from itertools.combinations(range(1, n + 1), count)


def visible(prompt, end):
    """Return everything that decides the state after ``end`` tokens, the slow, obvious way."""
    spans = tuple(
        (span.start, min(span.end, end), span.media) for span in prompt.media if span.start < end
    )
    return tuple(prompt.tokens(0, end)), spans


class Names:
    """Every name seen and every past seen; a second partner for either is a failure."""

    def __init__(self):
        self.past_of = {}
        self.name_of = {}

    def see(self, name, past):
        assert self.past_of.setdefault(name, past) == past, "one name for two pasts"
        assert self.name_of.setdefault(past, name) == name, "two names for one past"


def check_grid_names():
    """Name every small prompt on the grid, under a few models and salts."""
    names = Names()
    for prompt in small_prompts():
        for block in name_blocks(prompt, grid(prompt, B), MODEL, SALT):
            names.see(block.name, (MODEL, SALT, visible(prompt, block.end)))
    tenants = itertools.product((MODEL, OTHER_MODEL), (SALT, salt_of(None, ""), Salt(b"")))
    for model, salt in tenants:
        for prompt in small_prompts(B):
            for block in name_blocks(prompt, grid(prompt, B), model, salt):
                names.see(block.name, (model, salt, visible(prompt, block.end)))


def check_cut_names():
    """Name every very small prompt under every cut: a name also says how its past was cut."""
    names = Names()
    for prompt in small_prompts(3, TOKENS[:2], (MEDIA[0], MEDIA[2])):
        for ends in cuts(len(prompt)):
            for n, block in enumerate(name_blocks(prompt, ends, MODEL, SALT), 1):
                names.see(block.name, (ends[:n], visible(prompt, block.end)))


def check_crafted_names():
    """Name the pairs of prompts that only a deliberate hand can bring near a collision."""
    for one, two in (tokens_that_spell_a_span(), spans_that_run_together()):
        names = [name_blocks(prompt, (len(prompt),), MODEL, SALT)[0].name for prompt in (one, two)]
        assert names[0] != names[1]


def tokens_that_spell_a_span():
    """Return two prompts whose blocks are the same bytes when no count says where tokens end."""
    name = b"x" * 7
    inner = pack("<QQQ", 0, 1, 0) + b"b" + pack("<Q", len(name)) + name
    outer_name = b"xyz" + inner
    outer = pack("<QQQ", 0, 1, 0) + b"b" + pack("<Q", len(outer_name)) + b"xyz"
    assert len(outer) % 4 == 0
    ids = pack("<I", 1)
    return (
        Prompt(ids, (MediaSpan(0, 1, MediaName(outer_name)),)),
        Prompt(ids + outer, (MediaSpan(0, 1, MediaName(name)),)),
    )


def spans_that_run_together():
    """Return two prompts whose spans are the same bytes when media names are not framed."""
    tokens = [1] * 512
    return (
        Prompt.of(
            tokens, (MediaSpan(0, 1, MediaName(b"a")), MediaSpan(256, 256, MediaName(b"\0b")))
        ),
        Prompt.of(tokens, (MediaSpan(0, 1, MediaName(b"a\0")), MediaSpan(1, 1, MediaName(b"b")))),
    )


CHECKS = (check_crafted_names, check_cut_names, check_grid_names)


def without(*dropped):
    """Return an encoder that drops fields of the canonical form."""

    def canonical(start, ids, spans):
        tokens = b"" if "count" in dropped else pack("<Q", len(ids) // 4)
        fields = [pack("<Q", start), tokens, b"" if "tokens" in dropped else ids]
        for span in spans if "spans" not in dropped else ():
            fields += [
                b"" if "span start" in dropped else pack("<Q", span.start),
                b"" if "span length" in dropped else pack("<Q", span.length),
                b"" if "offset" in dropped else pack("<Q", span.offset),
                b"" if "frame" in dropped else b"b" + pack("<Q", len(span.media)),
                b"" if "media" in dropped else span.media,
            ]
        return b"".join(fields)

    return canonical


def decimal_tokens(start, ids, spans):
    spelled = "".join(map(str, Prompt(ids).tokens())).encode()
    return pack("<Q", start) + spelled + without("tokens", "count")(0, b"", spans)


def sixteen_bits(start, ids, spans):
    clipped = b"".join(pack("<H", token & 0xFFFF) for token in Prompt(ids).tokens())
    return pack("<QQ", start, len(ids) // 4) + clipped + without("tokens")(0, b"", spans)


def orphans(prompt, ends, model, salt):
    """Name each block alone: no block knows what came before it."""
    blocks = identity.name_blocks(prompt, ends, model, salt)
    alone = [without()(block.start, block.ids, block.spans) for block in blocks]
    return tuple(
        block._replace(name=blake3(model + salt + encoded).digest())
        for block, encoded in zip(blocks, alone, strict=True)
    )


def whole_spans(media, start, end):
    """Put a span's whole length into the block where it begins, and nothing into later ones."""
    return tuple(
        SpanSlice(span.start - start, span.length, 0, span.media)
        for span in media
        if start <= span.start < end
    )


WRONG = {
    "tokens dropped": ("_canonical", without("tokens")),
    "tokens in decimal": ("_canonical", decimal_tokens),
    "tokens in 16 bits": ("_canonical", sixteen_bits),
    "no token count": ("_canonical", without("count")),
    "spans dropped": ("_canonical", without("spans")),
    "no span start": ("_canonical", without("span start")),
    "no span length": ("_canonical", without("span length")),
    "no offset in the item": ("_canonical", without("offset")),
    "media names dropped": ("_canonical", without("media")),
    "media names not framed": ("_canonical", without("frame")),
    "spans not clipped": ("_slices", whole_spans),
    "no parent": ("name_blocks", orphans),
    "salt dropped": ("root_name", lambda model, salt: blake3(model).digest()),
    "model dropped": ("root_name", lambda model, salt: blake3(salt).digest()),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_name_stands_for_exactly_one_visible_past(check):  # I1
    check()


@pytest.mark.parametrize("wrong", WRONG)
def test_the_enumeration_rejects_a_wrong_namer(wrong, monkeypatch):  # I1
    target, mutant = WRONG[wrong]
    module = globals() if target == "name_blocks" else vars(identity)
    monkeypatch.setitem(module, target, mutant)
    assert any(rejects(check) for check in CHECKS), f"{wrong}: no check failed"


def test_the_unmutated_encoder_of_the_mutants_is_the_real_one():
    prompt = Prompt.of((1, 2, 3), (MediaSpan(1, 2, MEDIA[2]),))
    block = name_blocks(prompt, (2,), MODEL, SALT)[0]
    fields = (block.start, block.ids, block.spans)
    assert without()(*fields) == identity._canonical(*fields)


def rejects(check):
    try:
        check()
    except AssertionError:
        return True
    return False


def test_neighbouring_tokens_that_differ_by_31_and_minus_1_have_other_names():
    # A polynomial hash in base 31 gives each of these pairs one value.
    for first, second in itertools.product(range(1, 40), repeat=2):
        one, two = Prompt.of((first, second)), Prompt.of((first - 1, second + 31))
        names = [name_blocks(prompt, (2,), MODEL, SALT)[0].name for prompt in (one, two)]
        assert names[0] != names[1]


def test_blocks_carry_the_prompt_they_name():
    prompt = Prompt.of(range(7), (MediaSpan(1, 4, MEDIA[0]), MediaSpan(5, 1, MEDIA[1])))
    first, second = name_blocks(prompt, (3, 6), MODEL, SALT)
    assert first == Block(
        first.name,
        root_name(MODEL, SALT),
        MODEL,
        0,
        3,
        prompt.ids[:12],
        (SpanSlice(1, 2, 0, MEDIA[0]),),
    )
    assert (second.parent, second.start, second.end) == (first.name, 3, 6)
    assert second.spans == (SpanSlice(0, 2, 2, MEDIA[0]), SpanSlice(2, 1, 0, MEDIA[1]))


def test_slices_by_bisection_are_the_overlapping_spans():
    for media in layouts(0, 5, MEDIA[:1]):
        for start, end in itertools.combinations(range(6), 2):
            slow = []
            for span in media:
                inside = [t for t in range(span.start, span.end) if start <= t < end]
                if inside:
                    offset = inside[0] - span.start
                    slow.append((inside[0] - start, len(inside), offset, span.media))
            assert list(identity._slices(media, start, end)) == slow


BLOCK = name_blocks(Prompt.of(range(6), (MediaSpan(1, 4, MEDIA[0]),)), (2, 4), MODEL, SALT)[1]
ALTERED = {
    "name": {"name": b"n" * 32},
    "parent": {"parent": b"p" * 32},
    "start": {"start": 1, "end": 3},
    "end": {"end": 5},
    "ids": {"ids": BLOCK.ids[:4] + b"\xff\0\0\0"},
    "fewer ids": {"ids": BLOCK.ids[:4]},
    "fewer ids and an earlier end": {"ids": BLOCK.ids[:4], "end": 3},
    "no spans": {"spans": ()},
    "span start": {"spans": (BLOCK.spans[0]._replace(start=1),)},
    "span length": {"spans": (BLOCK.spans[0]._replace(length=1),)},
    "span offset": {"spans": (BLOCK.spans[0]._replace(offset=0),)},
    "span media": {"spans": (BLOCK.spans[0]._replace(media=MEDIA[1]),)},
    "span twice": {"spans": BLOCK.spans * 2},
}


@pytest.mark.parametrize("altered", ALTERED)
def test_a_block_with_an_altered_field_does_not_rename(altered):  # I1
    assert renames(BLOCK)
    assert not renames(BLOCK._replace(**ALTERED[altered]))


KEYS = (None, b"", b"a", b"\0", b"n", SALT, b"k" * 32)
CACHE_SALTS = (None, "", "a", "\0", "n", "None", "k" * 32, (b"k" * 32).hex(), "é", "e\u0301")


def check_salts():
    pairs = list(itertools.product(KEYS, CACHE_SALTS))
    assert len({identity.salt_of(key, text) for key, text in pairs}) == len(pairs)


WRONG_SALTS = {
    "none and '' are one": lambda key, text: (key or b"", text or ""),
    "no key is an empty key": lambda key, text: (key or b"", text),
    "no salt is an empty salt": lambda key, text: (key, text or ""),
    "key dropped": lambda key, text: text,
    "salt dropped": lambda key, text: key,
    "run together": lambda key, text: (key or b"") + (text or "").encode(),
    "untyped": lambda key, text: (key, None if text is None else text.encode()) if key else text,
    "spelled": lambda key, text: (str(key), str(text)),
}


def test_every_pair_of_key_and_cache_salt_is_a_salt_of_its_own():  # I9
    check_salts()


@pytest.mark.parametrize("wrong", WRONG_SALTS)
def test_the_salt_enumeration_rejects_a_wrong_salt(wrong, monkeypatch):  # I9
    monkeypatch.setattr(identity, "salt_of", WRONG_SALTS[wrong])
    assert rejects(check_salts)


def test_two_salts_share_no_block_and_no_feature():  # I9
    salts = [salt_of(key, text) for key in KEYS for text in CACHE_SALTS]
    prompt = Prompt.of(range(6), (MediaSpan(1, 4, MEDIA[0]),))
    blocks = [block.name for salt in salts for block in name_blocks(prompt, (2, 4, 6), MODEL, salt)]
    features = [feature_name(MODEL, salt, MEDIA[0]) for salt in salts]
    assert len(set(blocks + features)) == 4 * len(salts)


def flipped(name):
    """Return every name that differs from ``name`` in one byte."""
    return [name[:at] + bytes([name[at] ^ 1]) + name[at + 1 :] for at in range(len(name))]


def test_no_byte_of_a_name_is_left_out_of_the_names_built_on_it():  # I1, I9
    media = MediaName(bytes(range(32)))

    def built(model=MODEL, salt=SALT, item=media):
        prompt = Prompt.of(range(2), (MediaSpan(0, 1, item),))
        return name_blocks(prompt, (2,), model, salt)[0].name, feature_name(model, salt, item)

    others = [
        *(built(model=ModelName(one)) for one in flipped(MODEL)),
        *(built(salt=Salt(one)) for one in flipped(SALT)),
        *(built(item=MediaName(one)) for one in flipped(media)),
    ]
    names = [name for pair in (built(), *others) for name in pair]
    assert len(set(names)) == 2 * (1 + 3 * 32)


def test_features_depend_on_the_model_and_on_the_item():
    model_media = itertools.product((MODEL, OTHER_MODEL), MEDIA)
    assert len({feature_name(model, SALT, media) for model, media in model_media}) == 6


PIXELS = bytes(range(72))
ITEM = {
    "processor": b"p" * 32,
    "dtype": "float32",
    "shape": (6, 3),
    "grid": (1, 2, 3),
    "data": PIXELS,
}
OTHER_ITEMS = (
    {"processor": b"q" * 32},
    {"dtype": "int32"},
    {"shape": (3, 6)},
    {"shape": (6, 3, 1)},
    {"grid": (1, 3, 2)},
    {"grid": (2, 3)},
    {"shape": (6,), "grid": (3, 1, 2, 3)},
    {"data": PIXELS[::-1]},
    {"data": PIXELS[:-1]},
)


def test_every_field_of_a_media_item_changes_its_name():  # I1
    names = [media_name(**ITEM | change) for change in ({}, *OTHER_ITEMS)]
    assert len(set(names)) == len(names)


def test_pictures_of_six_by_four_and_four_by_six_have_other_names():  # I1
    wide = identity.pixels_name(b"p", 6, 4, PIXELS)
    assert wide != identity.pixels_name(b"p", 4, 6, PIXELS)
    assert wide != identity.pixels_name(b"q", 6, 4, PIXELS)
    assert wide != identity.pixels_name(b"p", 6, 4, PIXELS[::-1])
    tensor = ITEM | {"grid": (1, 6, 4)}
    assert media_name(**tensor) != media_name(**tensor | {"grid": (1, 4, 6)})


def test_a_name_does_not_depend_on_the_kind_of_buffer():
    buffers = (PIXELS, bytearray(PIXELS), memoryview(PIXELS))
    assert len({media_name(**ITEM | {"data": data}) for data in buffers}) == 1
    assert len({identity.pixels_name(b"p", 6, 4, data) for data in buffers}) == 1
    assert len({identity.tensors_digest([("w", "uint8", (72,), d)]) for d in buffers}) == 1


def test_lists_of_tensors_are_not_confused_by_where_one_ends():
    def digest(*data):
        return identity.tensors_digest(("w", "u1", (1,), one) for one in data)

    second = identity._frames(("w", "u1", (1,))) + b"b" + pack("<Q", 1)
    assert digest(b"\1\2", b"\3\4\5") != digest(b"\1\2\3", b"\4\5")
    assert digest(b"\1", b"\2") != digest(b"\1" + second + b"\2")
    assert digest(b"\1", b"\2") != digest(b"\2", b"\1")


def test_every_field_of_a_tensor_changes_the_digest():
    tensors = (
        ("w", "uint8", (2, 3), b"123456"),
        ("v", "uint8", (2, 3), b"123456"),
        ("w", "int8", (2, 3), b"123456"),
        ("w", "uint8", (3, 2), b"123456"),
        ("w", "uint8", (2, 3), b"123457"),
    )
    assert len({identity.tensors_digest([one]) for one in tensors}) == len(tensors)


MODEL_FIELDS = {
    "weights": b"w" * 32,
    "config": "{}",
    "numerics": {"threads": "2", "torch": "x"},
    "fingerprint": b"f" * 32,
}
OTHER_MODELS = (
    {"weights": b"W" * 32},
    {"config": '{"layers":1}'},
    {"numerics": {"threads": "1", "torch": "x"}},
    {"numerics": {"thread": "2", "torch": "x"}},
    {"numerics": {"threads": "2"}},
    {"numerics": {"2": "threads", "torch": "x"}},
    {"numerics": {"threads": "2", "torch": "x", "": ""}},
    {"fingerprint": b"F" * 32},
)


def test_every_field_of_a_model_changes_its_name():  # I1
    names = [identity.model_name(**MODEL_FIELDS | change) for change in ({}, *OTHER_MODELS)]
    assert len(set(names)) == len(names)


def test_a_models_name_does_not_depend_on_the_order_of_its_numerics():
    turned = dict(reversed(MODEL_FIELDS["numerics"].items()))
    assert identity.model_name(**MODEL_FIELDS) == identity.model_name(
        **MODEL_FIELDS | {"numerics": turned}
    )


def test_kinds_of_names_never_meet():
    # The same frames under two domains; only the domain tells them apart.
    assert salt_of(KeyId(b"a"), "b") != identity.key_id(b"a", "b")
    assert identity.tensors_digest(()) != identity.state_digest(())
    assert identity.settings_digest("a", "b") != identity._name("other", "a", "b")


# --- what evidence shows ---------------------------------------------------------------------

SECRET = b"s" * 32


def positions(tokens, *, secret=SECRET, start=0):
    digests = identity.token_digests(secret, Prompt.of(tokens).ids, start)
    return [digests[at : at + 8] for at in range(0, len(digests), 8)]


def test_token_digests_show_where_two_prompts_part():
    first, second = positions([5, 6, 7, 8]), positions([5, 6, 9, 8, 1])
    assert len(first) == 4
    assert len(second) == 5
    assert [one == other for one, other in zip(first, second, strict=False)] == [1, 1, 0, 0]


def test_equal_tokens_look_different_after_different_pasts():
    # Of single positions, "8 at position 3" would look the same in every prompt of a store.
    assert positions([5, 6, 7, 8])[3] != positions([1, 6, 7, 8])[3]
    assert len(set(positions([8] * 1000))) == 1000


def test_token_digests_can_be_taken_up_where_others_ended():
    whole = positions(range(40))
    assert all(positions(range(40), start=start) == whole[start:] for start in range(41))


def test_without_the_secret_a_dictionary_finds_no_token():
    shown = set(positions([7]))
    guesses = [b"", bytes(32), b"t" * 32, SECRET[:-1], SECRET + b"s", SECRET[::-1] + b"\0"]
    assert not any(shown & set(positions([7], secret=guess)) for guess in guesses)
    assert not any(shown & set(positions([token])) for token in range(2048) if token != 7)


def test_an_alias_says_whether_two_names_are_equal_and_no_more():
    names = [bytes([n]) * 32 for n in range(8)]
    aliases = [identity.alias(SECRET, name) for name in names]
    assert len({*names, *aliases}) == 16
    assert aliases == [identity.alias(SECRET, name) for name in names]
    assert not set(aliases) & {identity.alias(b"t" * 32, name) for name in names}


def test_every_secret_is_a_store_of_its_own():
    assert identity.store_id(SECRET) != identity.store_id(b"t" * 32)
    assert identity.store_id(SECRET) != identity.key_id(SECRET, "")


FIELDS = (
    None,
    b"",
    b"a",
    b"aa",
    b"aba",
    b"\0" * 8,
    b"\1" + b"\0" * 7,
    "",
    "a",
    "aa",
    "n",
    0,
    1,
    97,
    256,
    2**64 - 1,
    (),
    (0,),
    (1,),
    (0, 1),
    (1, 0),
    b"s" + pack("<Q", 1) + b"a",
)


def check_frames(frames):
    seen = {}
    for n in range(4):
        for fields in itertools.product(FIELDS, repeat=n):
            assert seen.setdefault(frames(fields), fields) == fields


def spell(field):
    """Return a field's bytes with neither type nor length."""
    match field:
        case None:
            return b""
        case str():
            return field.encode()
        case int():
            return pack("<Q", field)
        case tuple():
            return b"".join(map(spell, field))
    return field


WRONG_FRAMES = {
    "no frames": lambda fields: b"".join(map(spell, fields)),
    "joined by NUL": lambda fields: b"\0".join(map(spell, fields)),
    "length without type": lambda fields: b"".join(
        pack("<Q", len(spell(field))) + spell(field) for field in fields
    ),
    "type without length": lambda fields: b"".join(
        type(field).__name__[:1].encode() + spell(field) for field in fields
    ),
    "numbers of one byte": lambda fields: identity._frames(
        field % 256 if isinstance(field, int) else field for field in fields
    ),
}


def test_no_two_lists_of_fields_are_the_same_bytes():  # I1
    check_frames(identity._frames)


@pytest.mark.parametrize("wrong", WRONG_FRAMES)
def test_the_enumeration_of_fields_rejects_a_wrong_framing(wrong):
    assert rejects(lambda: check_frames(WRONG_FRAMES[wrong]))


@pytest.mark.parametrize("stranger", [1.5, bytearray(b"a"), [1], {}])
def test_a_field_of_an_unknown_type_is_a_bug_and_not_a_repeated_field(stranger):
    with pytest.raises(AssertionError):
        identity._name("settings", "a", stranger)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_does_not_fit_is_refused(number):
    with pytest.raises(OverflowError):
        identity._name("settings", number)


def test_text_that_is_not_unicode_still_has_a_name_of_its_own():
    texts = ("\ud800", "\ud801", "?", "\ufffd")
    assert len({identity.settings_digest("x", text) for text in texts}) == len(texts)


def test_a_root_needs_a_whole_model_name():
    with pytest.raises(AssertionError):
        root_name(ModelName(b"short"), SALT)
