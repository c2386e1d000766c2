"""What the model sees is what the name says, from the image file to the block (I1).

Every check takes a namer, from a file's bytes to a name; ``WRONG`` keeps the namers that the checks
must reject. Each is how a real server has named images.
"""

import struct
from io import BytesIO
from itertools import combinations, product

import pytest
from PIL import Image as Pillow
from PIL import PngImagePlugin
from small_pictures import (
    asked,
    consumed,
    encoded,
    from_rows,
    gemma,
    noise,
    oriented,
    prompt_of,
    qwen,
    read,
    seeing_chat,
    solid,
)

from surefoot import identity
from surefoot.chat.request import ChatInput, Image, Message, Role
from surefoot.identity import ModelName, name_blocks, salt_of
from surefoot.prompt import grid

LEVELS = (0, 1, 255)
COLOURS = tuple(product(LEVELS, repeat=3))
CORNERS = tuple(product((0, 255), repeat=3))


def small_pictures(colours):
    """Yield every picture of one or two pixels in these colours."""
    for one in colours:
        yield from_rows([[one]])
    for one, two in product(colours, repeat=2):
        yield from_rows([[one, two]])
        yield from_rows([[one], [two]])


@pytest.mark.parametrize(("make", "colours"), [(qwen, COLOURS), (gemma, CORNERS)])
def test_every_small_picture_has_a_name_of_its_own(make, colours):  # I1
    processor = make()
    seen = {}
    for picture in small_pictures(colours):
        item = processor.item(picture, place="", param="")
        what = (item.dtype, item.shape, item.grid, item.data)
        assert seen.setdefault(item.name, what) == what, "one name for two tensors"
    assert len(seen) == len(colours) + 2 * len(colours) ** 2


# --- files ---------------------------------------------------------------------------------------

STREAM = noise(6, 4).reshape(-1)


def palette_file(*colours, kind="PNG"):
    picture = Pillow.new("P", (32, 32))
    picture.putpalette([level for colour in colours for level in colour])
    picture.putdata([at % len(colours) for at in range(32 * 32)])
    return encoded(picture, kind)


def one_sample_changed():
    """Yield files that differ from one picture in one sample, by one, where nothing is scaled."""
    pixels = noise(64, 64).clip(1, 254).astype(int)
    yield encoded(from_rows(pixels))
    places = [*product((0, 1, 31, 32, 63), repeat=2), (7, 50)]
    for (y, x), channel, step in product(places, range(3), (-1, 1)):
        other = pixels.copy()
        other[y, x, channel] += step
        yield encoded(from_rows(other))


DIFFERENT = {
    "6 x 4 and 4 x 6 of the same bytes": [
        encoded(Pillow.fromarray(STREAM.reshape(shape))) for shape in ((4, 6, 3), (6, 4, 3))
    ],
    "palettes that colour equal bytes": [
        palette_file((255, 0, 0)),
        palette_file((0, 0, 255)),
        palette_file((255, 0, 0), (0, 0, 255)),
        palette_file((0, 0, 255), (255, 0, 0)),
    ],
    "one sample, by one": list(one_sample_changed()),
    "turned": [
        encoded(Pillow.fromarray(noise(64, 64)), exif=oriented(turn)) for turn in range(1, 9)
    ],
    "solid colours": [
        solid(one) for one in ("red", "green", "blue", "white", "black", (255, 0, 1))
    ],
    "sizes of one colour": [
        solid("red", size) for size in ((64, 64), (96, 64), (64, 96), (200, 40))
    ],
    "transparency": [
        encoded(Pillow.new("RGBA", (32, 32), (9, 9, 9, alpha))) for alpha in (0, 1, 128, 254, 255)
    ],
    "the end of a large picture": [
        encoded(from_rows([[(1, 2, 3)] * 96] * 95 + [[(1, 2, 3)] * 95 + [last]]))
        for last in ((1, 2, 3), (1, 2, 4))
    ],
}

PIXELS = noise(64, 64)
PICTURE = Pillow.fromarray(PIXELS)
FEW = Pillow.fromarray((noise(32, 32) // 128) * 255)  # eight colours


def described():
    text = PngImagePlugin.PngInfo()
    text.add_text("Title", "another picture altogether")
    text.add(b"gAMA", struct.pack(">I", 45_455))
    return text


EQUAL = {
    "lossless files": [
        encoded(PICTURE),
        encoded(PICTURE, "BMP"),
        encoded(PICTURE, "TIFF"),
        encoded(PICTURE, "TIFF", compression="tiff_lzw"),
        encoded(PICTURE, "WEBP", lossless=True),
    ],
    "encoded anew": [
        encoded(PICTURE),
        encoded(PICTURE, compress_level=0),
        encoded(PICTURE, optimize=True),
        encoded(Pillow.open(BytesIO(encoded(PICTURE)))),
    ],
    "metadata": [
        encoded(PICTURE),
        encoded(PICTURE, pnginfo=described()),
        encoded(PICTURE, exif=oriented(1), dpi=(300, 300), icc_profile=b"some profile"),
    ],
    "turned by EXIF and by hand": [
        encoded(PICTURE),
        encoded(PICTURE.transpose(Pillow.Transpose.ROTATE_90), exif=oriented(6)),
        encoded(PICTURE.transpose(Pillow.Transpose.ROTATE_270), "TIFF", exif=oriented(8)),
        encoded(PICTURE.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT), exif=oriented(2)),
    ],
    "palette and colours": [
        encoded(FEW),
        encoded(FEW.convert("P", palette=Pillow.Palette.ADAPTIVE, colors=8)),
        encoded(FEW.convert("P", palette=Pillow.Palette.ADAPTIVE, colors=8), "GIF"),
        encoded(FEW, "BMP"),
    ],
    "opaque": [encoded(PICTURE), encoded(PICTURE.convert("RGBA"))],
    "grey": [
        encoded(PICTURE.convert("L")),
        encoded(PICTURE.convert("L").convert("RGB")),
        encoded(PICTURE.convert("L").convert("LA")),
    ],
}


def check_different(namer):
    for what, files in DIFFERENT.items():
        assert len({namer(data) for data in files}) == len(files), what


def check_equal(namer):
    for what, files in EQUAL.items():
        assert len({namer(data) for data in files}) == 1, what


def namer_of(processor):
    return lambda data: consumed(processor, data).name


def test_what_the_tower_sees_differently_is_named_differently():  # I1
    check_different(namer_of(qwen()))


def test_what_the_tower_sees_alike_is_named_alike():
    for processor in (qwen(), gemma()):
        check_equal(namer_of(processor))


def digest(*fields):
    return identity._name("wrong", *fields)


def stored_bytes(data):
    return Pillow.open(BytesIO(data)).tobytes()


def final(data):
    picture = read(data)
    return picture.size, picture.tobytes()


WRONG = {
    "the file": lambda data: digest(data),
    "stored bytes and size": lambda data: digest(
        Pillow.open(BytesIO(data)).size, stored_bytes(data)
    ),
    "stored bytes and mode": lambda data: digest(
        Pillow.open(BytesIO(data)).mode, stored_bytes(data)
    ),
    "pixels without their size": lambda data: digest(final(data)[1]),
    "size alone": lambda data: digest(final(data)[0]),
    "the first kilobytes": lambda data: digest(final(data)[0], final(data)[1][:4096]),
    "a thumbnail": lambda data: digest(final(data)[0], read(data).resize((8, 8)).tobytes()),
    "grey": lambda data: digest(final(data)[0], read(data).convert("L").tobytes()),
    "seven bits": lambda data: digest(
        final(data)[0], bytes(level >> 1 for level in final(data)[1])
    ),
    "one byte of the digest": lambda data: digest(*final(data))[:1],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_way_to_name_images_is_rejected(wrong):
    broken = 0
    for check in (check_different, check_equal):
        try:
            check(WRONG[wrong])
        except AssertionError:
            broken += 1
    assert broken


FORGETFUL = {
    "the size": lambda processor, width, height, rgb: digest(processor, bytes(rgb)),
    "which side": lambda processor, width, height, rgb: digest(processor, width * height, rgb),
    "the end": lambda processor, width, height, rgb: digest(processor, width, height, rgb[:4096]),
}


@pytest.mark.parametrize("wrong", FORGETFUL)
def test_a_memo_that_forgets_a_part_of_the_pixels_is_rejected(wrong, monkeypatch):
    monkeypatch.setattr(identity, "pixels_name", FORGETFUL[wrong])
    with pytest.raises(AssertionError):
        check_different(namer_of(qwen()))


def test_a_memo_is_not_shared_by_two_settings():
    names = [consumed(qwen(**change), solid("red")).name for change in ({}, {"resample": 2})]
    assert names[0] != names[1]


# --- prompts -------------------------------------------------------------------------------------

MODEL, SALT, B = ModelName(b"m" * 32), salt_of(None, None), 4
A, Z, M = (
    solid("red"),
    solid("blue"),
    solid("green"),
)  # of one size: their prompts have equal tokens
ANSWER = Message(role=Role.ASSISTANT, content="ok")


def named(request, chat=None):
    """Return a conversation's tokens, spans and block names."""
    prompt = prompt_of(chat or seeing_chat()[0], request)
    names = [one.name for one in name_blocks(prompt, grid(prompt, B), MODEL, SALT)]
    return prompt, names


def shared(one, two):
    """Return how many blocks two lists of names have in common, and that none agrees after."""
    count = next(
        (at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(two)),
    )
    assert not set(one[count:]) & set(two[count:])
    return count


def test_another_image_under_the_same_text_shares_the_text_before_it_only():  # I1
    texts = ("describe this in one word please ", " and be brief about it, no more than a word")
    seen = [named(asked([texts[0], one, texts[1]])) for one in (A, Z, M)]
    assert len({prompt.ids for prompt, _ in seen}) == 1
    for (prompt, one), (_, two) in combinations(seen, 2):
        [span] = prompt.media
        assert shared(one, two) == span.start // B > 0


def test_the_order_of_two_images_is_part_of_the_names():  # I1
    (prompt, one), (turned, two) = (
        named(asked(["which?", *pair, "x" * 40])) for pair in ((A, Z), (Z, A))
    )
    assert prompt.ids == turned.ids
    assert shared(one, two) == prompt.media[0].start // B


def test_the_second_of_two_images_changes_nothing_before_it():  # I1
    (prompt, one), (_, two) = (named(asked(["which?", A, second, "x" * 40])) for second in (Z, M))
    assert shared(one, two) == prompt.media[1].start // B > prompt.media[0].start // B


def test_one_image_twice_is_not_two_images():  # I1
    seen = [named(asked([one, two, "x" * 40]))[1][-1] for one, two in product((A, Z), repeat=2)]
    assert len(set(seen)) == 4


def test_the_place_of_an_image_is_part_of_the_names():  # I1
    requests = [
        asked([A, "a b c", "x" * 40]),
        asked(["a b c", A, "x" * 40]),
        asked(["a ", A, "b c", "x" * 40]),
        asked([A, "a b c"], "x" * 40),
        asked("a b c", ["x" * 40, A]),
        asked("a b c", [A, "x" * 40]),
        asked("a b c", "x" * 40),
    ]
    lasts = [named(request)[1][-1] for request in requests]
    assert len(set(lasts)) == len(lasts)


def test_an_image_in_a_later_turn_keeps_the_names_of_the_turns_before():  # I1
    turns = ("what is the colour of the sky?", "and of the sea?")
    plain, _ = named(asked(*turns, "x"))
    first = named(asked(*turns, ["x", A]))[1]
    other = named(asked(*turns, ["x", Z]))[1]
    before = len(named(asked(*turns))[1])
    assert shared(first, other) >= before - 4
    assert shared(named(asked(*turns, "x"))[1], first) >= len(plain) // B - 4


def test_the_same_pixels_in_another_file_are_the_same_names():
    files = [encoded(PICTURE), encoded(PICTURE, "BMP"), encoded(PICTURE, "WEBP", lossless=True)]
    seen = [named(asked(["see", data, "x" * 40])) for data in files]
    assert seen[0] == seen[1] == seen[2]


def test_where_a_client_puts_an_image_in_its_request_is_not_identity():
    chat, _ = seeing_chat()
    said = [
        ChatInput((Message(role=Role.USER, content=("see", Image(A, path), "x" * 40)),))
        for path in ("messages[0].content[1]", "https://example.com/blue.png", "blue")
    ]
    assert named(said[0], chat) == named(said[1], chat) == named(said[2], chat)


def test_the_next_turn_begins_with_the_names_of_this_one():  # I1
    chat, _ = seeing_chat()
    request = asked(["see ", A, "x" * 20], ["and ", Z, "y" * 20])
    history = chat.history(request, "ok", list(chat.media(request)))
    ends = grid(history, B)
    names = [one.name for one in name_blocks(history, ends, MODEL, SALT)]
    following = asked(["see ", A, "x" * 20], ["and ", Z, "y" * 20]).messages
    later = ChatInput((*following, ANSWER, Message(role=Role.USER, content="more?")))
    assert named(later, chat)[1][: len(names)] == names
    swapped = asked(["see ", Z, "x" * 20], ["and ", A, "y" * 20]).messages
    others = named(ChatInput((*swapped, ANSWER, Message(role=Role.USER, content="more?"))), chat)[1]
    assert shared(others, names) < len(names) // 2


def test_a_processors_setting_is_part_of_a_blocks_name():  # I1
    chats = [seeing_chat(processor=qwen(**change))[0] for change in ({}, {"resample": 2})]
    (prompt, one), (_, two) = (named(asked(["x" * 20, A, "y" * 20]), chat) for chat in chats)
    assert shared(one, two) == prompt.media[0].start // B


def test_red_and_blue_palettes_are_told_apart_in_every_block():  # I1
    red, blue = palette_file((255, 0, 0)), palette_file((0, 0, 255))
    assert stored_bytes(red) == stored_bytes(blue)
    (prompt, one), (_, two) = (named(asked(["colour?", data, "y" * 20])) for data in (red, blue))
    assert shared(one, two) == prompt.media[0].start // B


def test_all_orders_of_three_images_are_different_pasts():  # I1
    pictures = (A, Z, M)
    ends = [
        named(asked([*(pictures[at] for at in order), "x" * 30]))[1][-1]
        for order in product(range(3), repeat=3)
    ]
    assert len(set(ends)) == 27
