"""Image files to pixels: the rule, the limits, and what damaged files do."""

import struct
import warnings
import zlib
from io import BytesIO
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from PIL import ImageFile, PngImagePlugin
from small_pictures import array, encoded, noise, oriented, png_announcing, read, solid

from surefoot.chat import ImageLimits
from surefoot.errors import RequestError, TooLarge

RGB = noise(7, 5)
PICTURE = Pillow.fromarray(RGB)


def refused(data, limits=None, error=RequestError):
    with pytest.raises(error) as caught:
        read(data, limits, path="messages[1].content[2]")
    assert type(caught.value) is error
    assert caught.value.param == "messages[1].content[2]"
    assert "image 1 (messages[1].content[2])" in str(caught.value)
    return str(caught.value)


# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("PNG", {"compress_level": 0, "pnginfo": PngImagePlugin.PngInfo()}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_a_lossless_file_is_the_pixels_that_were_saved(kind, options):
    result = read(encoded(PICTURE, kind, **options))
    assert (result.mode, result.size) == ("RGB", (7, 5))
    assert (np.asarray(result) == RGB).all()


def test_a_jpeg_is_what_pillow_decodes():
    data = encoded(PICTURE, "JPEG")
    assert (array(data) == np.asarray(Pillow.open(BytesIO(data)))).all()


def test_a_file_is_what_its_bytes_say_and_nothing_else():
    for data in (b"", b"P6 1 1 255 abc", b"<svg/>", b"%PDF-1.7", encoded(PICTURE, "PPM"), b"RIF"):
        assert "PNG, JPEG, WebP, GIF, BMP or TIFF" in refused(data)
    assert "PNG, JPEG" not in refused(b"RIFF\x04\0\0\0WAVE")  # a RIFF file that is no WebP


def test_of_frames_and_pages_the_first_is_shown():
    other = Pillow.fromarray(255 - RGB)
    for kind in ("GIF", "TIFF", "WEBP", "PNG"):
        options = {"lossless": True} if kind == "WEBP" else {}
        many = encoded(PICTURE, kind, save_all=True, append_images=[other], **options)
        one = encoded(PICTURE, kind, **options)
        assert Pillow.open(BytesIO(many)).n_frames == 2
        assert (array(many) == array(one)).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_stored_orientation_is_applied(kind, orientation):
    options = {"WEBP": {"lossless": True}}.get(kind, {})
    turned = array(encoded(PICTURE, kind, exif=oriented(orientation), **options))
    plain = array(encoded(PICTURE, kind, **options))
    assert (turned == upright(plain, orientation)).all()


def upright(pixels, orientation):
    """Turn pixels as the EXIF standard draws it: where row 0 and column 0 of the file belong."""
    return {
        2: lambda: pixels[:, ::-1],
        3: lambda: pixels[::-1, ::-1],
        4: lambda: pixels[::-1],
        5: lambda: pixels.swapaxes(0, 1),
        6: lambda: pixels[::-1].swapaxes(0, 1),
        7: lambda: pixels[::-1, ::-1].swapaxes(0, 1),
        8: lambda: pixels[:, ::-1].swapaxes(0, 1),
    }.get(orientation, lambda: pixels)()


def test_an_orientation_that_cannot_be_read_counts_as_none():
    data = encoded(PICTURE, "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    assert (array(data) == RGB).all()
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "\n\n\nnot hexadecimal")
    assert (array(encoded(PICTURE, "PNG", pnginfo=text)) == RGB).all()


def over_white(colour, alpha):
    """The oracle, in whole numbers: round to the nearest, halves up."""
    exact = alpha * colour + (255 - alpha) * 255
    return (2 * exact + 255) // 510


def test_alpha_lies_over_white_for_every_colour_and_alpha():
    colour, alpha = np.meshgrid(np.arange(256), np.arange(256))
    samples = np.stack([colour, 255 - colour, colour // 2, alpha], axis=-1).astype(np.uint8)
    wanted = over_white(samples[..., :3].astype(int), samples[..., 3:].astype(int))
    assert (array(encoded(Pillow.fromarray(samples), "PNG")) == wanted).all()
    grey = Pillow.fromarray(samples[..., [0, 3]])
    assert (array(encoded(grey, "PNG")) == wanted[..., :1]).all()


def test_what_is_hidden_by_alpha_changes_nothing():
    clear = [np.full((4, 4, 4), (*colour, 0), np.uint8) for colour in ((1, 2, 3), (200, 0, 9))]
    pages = [array(encoded(Pillow.fromarray(one), "PNG")) for one in clear]
    assert (pages[0] == 255).all()
    assert (pages[1] == 255).all()


PALETTE = [255, 0, 0, 0, 0, 255, 10, 20, 30]


def palette_picture(palette=PALETTE):
    picture = Pillow.new("P", (3, 1))
    picture.putpalette(palette)
    picture.putdata([0, 1, 2])
    return picture


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF"])
def test_a_palette_becomes_its_colours(kind):
    data = encoded(palette_picture(), kind)
    assert array(data).tolist() == [[[255, 0, 0], [0, 0, 255], [10, 20, 30]]]


def test_a_palettes_transparency_lies_over_white_too():
    one = encoded(palette_picture(), "PNG", transparency=1)
    assert array(one).tolist() == [[[255, 0, 0], [255, 255, 255], [10, 20, 30]]]
    each = encoded(palette_picture(), "PNG", transparency=bytes([255, 0, 128]))
    half = over_white(np.array([10, 20, 30]), 128).tolist()
    assert array(each).tolist() == [[[255, 0, 0], [255, 255, 255], half]]
    frame = encoded(palette_picture(), "GIF", transparency=0)
    assert array(frame).tolist() == [[[255, 255, 255], [0, 0, 255], [10, 20, 30]]]


@pytest.mark.parametrize(
    ("mode", "samples", "key", "wanted"),
    [
        ("L", [7, 8], 7, [[255] * 3, [8] * 3]),
        ("1", [0, 255], 0, [[255] * 3, [255] * 3]),
        ("RGB", [(1, 2, 3), (1, 2, 4)], (1, 2, 3), [[255] * 3, [1, 2, 4]]),
    ],
)
def test_a_colour_key_lies_over_white_too(mode, samples, key, wanted):
    picture = Pillow.new(mode, (2, 1))
    picture.putdata(samples)
    assert array(encoded(picture, "PNG", transparency=key)).tolist() == [wanted]


def test_greyscale_and_black_and_white_are_three_equal_samples():
    grey = noise(7, 5, 1)
    assert (array(encoded(Pillow.fromarray(grey), "PNG")) == grey[..., None]).all()
    for kind in ("PNG", "BMP", "TIFF"):
        bits = Pillow.fromarray(grey > 127)
        assert (array(encoded(bits, kind)) == (grey[..., None] > 127) * 255).all()


@pytest.mark.parametrize(("kind", "order"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_of_16_bits_of_grey_the_high_byte_is_kept(kind, order):
    deep = np.random.default_rng(1).integers(0, 2**16, (5, 7)).astype(order)
    data = encoded(Pillow.fromarray(deep), kind)
    assert (array(data) == (deep >> 8).astype(np.uint8)[..., None]).all()
    turned = encoded(Pillow.fromarray(deep), kind, exif=oriented(6))
    assert (array(turned) == upright(array(data), 6)).all()


def png16(samples, colour_type, key=b""):
    """Write a PNG of 16-bit samples [rows, columns, channels], which Pillow itself cannot."""
    height, width = samples.shape[:2]
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))]
    chunks += [(b"tRNS", key)] if key else []
    chunks += [(b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@pytest.mark.parametrize(("channels", "colour_type"), [(1, 0), (3, 2), (2, 4), (4, 6)])
def test_of_16_bits_of_any_colour_the_high_byte_is_kept(channels, colour_type):
    deep = np.random.default_rng(2).integers(0, 2**16, (5, 7, channels))
    high = (deep >> 8).astype(np.uint8)
    shallow = Pillow.fromarray(high[..., 0] if channels == 1 else high)
    assert (array(png16(deep, colour_type)) == array(encoded(shallow, "PNG"))).all()


def test_a_colour_key_of_16_bits_is_ignored():
    deep = np.full((2, 2, 3), 0xFF12)
    for low in (0x00FF, 0x0012, 0xFF12):
        key = struct.pack(">HHH", low, low, low)
        assert (array(png16(deep, 2, key)) == 255).all()
    deep[:] = 0x0012
    assert (array(png16(deep, 2, struct.pack(">HHH", 0, 0, 0))) == 0).all()


def test_cmyk_is_converted_by_arithmetic():
    inks = noise(7, 5, 4)
    wanted = np.asarray(Pillow.fromarray(inks, "CMYK").convert("RGB"))
    assert (array(encoded(Pillow.fromarray(inks, "CMYK"), "TIFF")) == wanted).all()
    jpeg = encoded(Pillow.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")
    assert np.abs(array(jpeg).astype(int) - (255, 0, 0)).max() < 6


def test_profiles_and_gamma_change_nothing():
    plain = array(encoded(PICTURE, "PNG"))
    assert (array(encoded(PICTURE, "PNG", icc_profile=b"a profile")) == plain).all()
    gamma = PngImagePlugin.PngInfo()
    gamma.add(b"gAMA", struct.pack(">I", 100_000))
    assert (array(encoded(PICTURE, "PNG", pnginfo=gamma)) == plain).all()


@pytest.mark.parametrize("mode", ["I", "F", "LAB"])
def test_samples_without_a_rule_are_refused_by_kind(mode):
    assert repr(mode) in refused(encoded(Pillow.new(mode, (8, 8)), "TIFF"))


# --- limits --------------------------------------------------------------------------------------


def test_every_limit_is_met_exactly_and_passed_by_one():
    data = solid("red", (12, 10))
    for limits in ({"bytes": len(data)}, {"pixels": 120}, {"side": 12}):
        assert read(data, ImageLimits(**limits)).size == (12, 10)
        less = {name: most - 1 for name, most in limits.items()}
        said = refused(data, ImageLimits(**less), TooLarge)
        assert f"{next(iter(less.values())):,}" in said
    assert "12 x 10 pixels" in refused(data, ImageLimits(pixels=119), TooLarge)


def test_a_picture_too_long_for_any_processor_is_refused():
    assert read(solid("red", (200, 1))).size == (200, 1)
    for size in ((201, 1), (1, 201), (401, 2)):
        assert "at most 200 times" in refused(solid("red", size))


def announcing(kind, width, height):
    if kind == "PNG":
        return png_announcing(width, height)
    if kind == "GIF":
        data, at, form = bytearray(encoded(PICTURE, "GIF")), 6, "<HH"
    elif kind == "BMP":
        data, at, form = bytearray(encoded(PICTURE, "BMP")), 18, "<ii"
    else:
        data, form = bytearray(encoded(PICTURE, "JPEG")), ">HH"
        at, width, height = data.find(b"\xff\xc0") + 5, height, width
    data[at : at + struct.calcsize(form)] = struct.pack(form, width, height)
    return bytes(data)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "JPEG"])
def test_a_bomb_is_refused_by_its_header(kind, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", unreachable)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for width, height in ((10_000, 10_000), (60_000, 60_000)):
            said = refused(announcing(kind, width, height), None, TooLarge)
            assert f"{width:,} x {height:,} pixels; at most 40,000,000 are decoded" in said
    assert not heard


def unreachable(*_):
    raise AssertionError("decoded before it was measured")


def test_a_webp_bomb_is_refused_as_it_is_opened():
    data = bytearray(encoded(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(180)]))
    at = data.find(b"VP8X") + 12
    data[at : at + 6] = (16_383).to_bytes(3, "little") * 2
    refused(bytes(data), None, TooLarge)


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0), (2**31, 5), (2**32 - 1, 2**32 - 1)])
def test_sizes_that_no_picture_has_are_refused(size):
    with pytest.raises(RequestError):
        read(png_announcing(*size))


def test_a_jpeg_of_endless_scans_is_refused():
    scans = encoded(PICTURE, "JPEG", progressive=True)
    assert read(scans).size == (7, 5)
    assert "100 scans" in refused(scans + b"\xff\xda" * 100)


# --- damage --------------------------------------------------------------------------------------

FILES = {
    "png": encoded(PICTURE, "PNG", exif=oriented(6)),
    "png palette": encoded(palette_picture(), "PNG", transparency=1),
    "png alpha": encoded(PICTURE.convert("RGBA"), "PNG"),
    "png 16": encoded(Pillow.fromarray(np.arange(35, dtype="<u2").reshape(5, 7)), "PNG"),
    "png moving": encoded(PICTURE, "PNG", save_all=True, append_images=[PICTURE.rotate(180)]),
    "jpeg": encoded(PICTURE, "JPEG", exif=oriented(6)),
    "jpeg progressive": encoded(PICTURE, "JPEG", progressive=True),
    "jpeg cmyk": encoded(PICTURE.convert("CMYK"), "JPEG"),
    "webp": encoded(PICTURE, "WEBP", exif=oriented(6).tobytes()),
    "webp lossless": encoded(PICTURE.convert("RGBA"), "WEBP", lossless=True),
    "gif": encoded(PICTURE, "GIF", transparency=1),
    "bmp": encoded(PICTURE, "BMP"),
    "bmp palette": encoded(palette_picture(), "BMP"),
    "tiff": encoded(PICTURE, "TIFF", exif=oriented(6)),
    "tiff lzw": encoded(PICTURE, "TIFF", compression="tiff_lzw"),
    "tiff jpeg": encoded(PICTURE, "TIFF", compression="jpeg"),
    "tiff fax": encoded(PICTURE.convert("1"), "TIFF", compression="group4"),
}


def read_or_refuse(data):
    """Whatever the bytes are, the result is pixels or a refusal; warnings are errors here."""
    try:
        result = read(data, ImageLimits(pixels=1_000_000))
    except RequestError:
        return None
    assert (result.mode, result.width * result.height <= 1_000_000) == ("RGB", True)
    return result


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_anywhere_is_pixels_or_a_refusal(name):
    data = FILES[name]
    assert read_or_refuse(data) is not None
    refusals = sum(read_or_refuse(data[:end]) is None for end in range(len(data)))
    assert refusals > len(data) // 2


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_one_wild_byte_in_its_header_is_pixels_or_a_refusal(name):
    data = FILES[name]
    for at, byte in product(range(min(len(data), 120)), (0, 1, 0x7F, 0xFF)):
        read_or_refuse(data[:at] + bytes([byte]) + data[at + 1 :])


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    wild=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8),
    cut=st.one_of(st.none(), st.integers(0, 2000)),
    more=st.binary(max_size=20),
)
def test_a_damaged_file_is_pixels_or_a_refusal(name, wild, cut, more):
    data = bytearray(FILES[name])
    for at, byte in wild:
        data[at % len(data)] = byte
    data[slice(cut, cut)] = more
    read_or_refuse(bytes(data))


@settings(max_examples=200, deadline=None)
@given(head=st.sampled_from([data[:8] for data in FILES.values()]), rest=st.binary(max_size=200))
def test_bytes_that_begin_as_a_picture_are_pixels_or_a_refusal(head, rest):
    read_or_refuse(head + rest)


class Strange(Exception):
    """Nothing that Pillow raises."""


@pytest.mark.parametrize("error", [Strange, NameError])
def test_a_bug_is_not_taken_for_a_damaged_file(monkeypatch, error):
    def broken(_):
        raise error

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", broken)
    with pytest.raises(error):
        read(solid("red"))


def test_a_palette_png_without_a_palette_is_the_clients_to_mend():
    ihdr = struct.pack(">IIBBBBB", 2, 2, 8, 3, 0, 0, 0)
    pieces = [(b"IHDR", ihdr), (b"IDAT", zlib.compress(bytes(6))), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in pieces
    )
    with pytest.raises(RequestError, match="cannot be read"):
        read(data)


def grey_png(depth, samples, key):
    packed = 0
    for sample in samples:
        packed = packed << depth | sample
    width = 8 // depth
    row = b"\0" + packed.to_bytes(1, "big")
    pieces = [
        (b"IHDR", struct.pack(">IIBBBBB", width, 1, depth, 0, 0, 0, 0)),
        (b"tRNS", struct.pack(">H", key)),
        (b"IDAT", zlib.compress(row)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in pieces
    )


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_grey_colour_key_hides_its_own_sample_at_every_depth(depth):
    most = 2**depth - 1
    width = 8 // depth
    for key in range(0, most + 1, max(1, most // 15)):
        for sample in {key, (key + 1) % (most + 1), 0, most}:
            data = grey_png(depth, [sample] * width, key)
            pixels = read(data)
            shown = 255 if sample == key else sample * 255 // most
            assert pixels.getpixel((0, 0)) == (shown,) * 3, (depth, key, sample)


def tiff(tags, body):
    at = 8 + 2 + 12 * (len(tags) + 1) + 4
    entries = sorted([*tags, (273, 4, 1, at)])
    listed = b"".join(struct.pack("<HHII", *one) for one in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + listed + bytes(4) + body


def grey_tiff(bits, meaning, body, compression=1):
    tags = [(256, 3, 1, 2), (257, 3, 1, 1), (258, 3, 1, bits), (259, 3, 1, compression)]
    tags += [(262, 3, 1, meaning), (277, 3, 1, 1), (278, 3, 1, 1), (279, 4, 1, len(body))]
    return tiff(tags, body)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (grey_tiff(12, 1, b"\xff" * 3), "12-bit"),
        (grey_tiff(16, 0, bytes(4)), "zero is white"),
    ],
)
def test_a_tiff_that_would_be_read_as_other_colours_is_refused(data, what):
    with pytest.raises(RequestError, match=what):
        read(data)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (grey_tiff(8, 1, b"\xff\x10"), 255),
        (grey_tiff(8, 0, b"\xff\x10"), 0),
        (grey_tiff(16, 1, b"\x00\xff\x00\x10"), 255),
    ],
)
def test_a_grey_tiff_is_read_as_it_means(data, shown):
    pixels = read(data)
    assert pixels.getpixel((0, 0)) == (shown,) * 3
