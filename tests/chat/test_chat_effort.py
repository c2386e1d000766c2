"""Small files that would take long are refused before they are decoded; ordinary ones are not."""

import io
import struct
import zlib

import pytest
from PIL import Image as Pillow

from surefoot.chat import effort
from surefoot.chat.images import ImageLimits, rgb_pixels
from surefoot.chat.request import Image
from surefoot.errors import RequestError

PLACE = "image 1 (here)"


def read(data):
    return rgb_pixels(Image(data, "here"), PLACE, ImageLimits())


def encoded(kind, picture=None, **options):
    written = io.BytesIO()
    (picture or Pillow.new("RGB", (64, 48), (200, 10, 10))).save(written, kind, **options)
    return written.getvalue()


def with_markers(count, size=10):
    data = encoded("JPEG")
    one = b"\xff\xe1" + struct.pack(">H", 2 + 6 + size) + b"Exif\0\0" + b"x" * size
    return data[:2] + one * count + data[2:]


def with_fill(count):
    data = encoded("JPEG")
    return data[:2] + b"\xff" * count + data[2:]


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_profiles(count):
    data = encoded("PNG")
    header = 8 + 25
    return data[:header] + chunk(b"iCCP", b"a\0\0" + zlib.compress(b"x")) * count + data[header:]


def run_length_bmp(code=1):
    rows = b"\x40\x05\x00\x00" * 48 + b"\0\1"
    palette = bytes(1024)
    head = struct.pack("<2sIHHI", b"BM", 54 + 1024 + len(rows), 0, 0, 54 + 1024)
    info = struct.pack("<IiiHHIIiiII", 40, 64, 48, 1, 8, code, len(rows), 0, 0, 256, 0)
    return head + info + palette + rows


def strips(count, order="<"):
    entries = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    at = 8 + 2 + 12 * 9 + 4
    entries += [
        (273, 4, count, at),
        (277, 3, 1, 1),
        (278, 3, 1, 1),
        (279, 4, count, at + 4 * count),
    ]
    if order == ">":  # a short value stands at the front of its four bytes
        entries = [(tag, 4 if kind == 3 else kind, *rest) for tag, kind, *rest in entries]
    listed = b"".join(struct.pack(f"{order}HHII", *one) for one in entries)
    body = struct.pack(f"{order}I", 8) * count * 2
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(f"{order}IH", 8, len(entries)) + listed + bytes(4) + body


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (with_markers(effort.MARKERS_MAX + 1), "markers"),
        (with_markers(200_000), "markers"),
        (with_fill(effort.FILL_MAX + 2), "markers"),
        (with_profiles(effort.PROFILES_MAX + 1), "colour profiles"),
        (run_length_bmp(1), "run-length"),
        (run_length_bmp(2), "run-length"),
        (strips(effort.TILES_MAX + 1), "strips"),
        (strips(effort.TILES_MAX + 1, ">"), "strips"),
        (encoded("JPEG") + b"\xff\xda" * effort.SCANS_MAX, "scans"),
    ],
    ids=[
        "markers",
        "many",
        "fill",
        "profiles",
        "RLE8",
        "RLE4",
        "strips",
        "big-endian strips",
        "scans",
    ],
)
def test_what_would_take_long_is_refused_by_its_place(data, what):
    with pytest.raises(RequestError, match=what) as refused:
        read(data)
    assert refused.value.param == "here"
    assert str(refused.value).startswith(PLACE)
    assert "takes too long; save it anew" in str(refused.value)


def test_scans_count_by_what_they_pass_over(monkeypatch):
    picture = Pillow.effect_noise((64, 48), 90).convert("RGB")
    data = encoded("JPEG", picture, progressive=True)
    scans = data.count(b"\xff\xda")
    assert scans > 3
    monkeypatch.setattr(effort, "SCANNED_PIXELS_MAX", scans * 64 * 48)
    read(data)
    monkeypatch.setattr(effort, "SCANNED_PIXELS_MAX", scans * 64 * 48 - 1)
    with pytest.raises(RequestError, match=f"{scans} scans of 64 x 48"):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        with_markers(effort.MARKERS_MAX - 20),
        with_fill(100),
        with_profiles(1),
        encoded("BMP"),
        encoded("BMP", Pillow.new("P", (9, 9))),
        encoded("TIFF"),
        strips(8, ">"),
        encoded("JPEG", progressive=True, icc_profile=bytes(500_000)),
    ],
    ids=[
        "markers",
        "fill",
        "a profile",
        "BMP",
        "palette BMP",
        "TIFF",
        "big-endian TIFF",
        "JPEG with a profile",
    ],
)
def test_ordinary_files_are_read(data):
    assert read(data).mode == "RGB"


def test_a_jpeg_cut_anywhere_before_its_scan_is_judged_without_end():
    data = encoded("JPEG")
    for end in range(2, data.index(b"\xff\xda") + 4):
        assert effort._few_markers(data[:end])


def test_the_limits_leave_room_for_what_cameras_write():
    # 40 million pixels in a progressive file of ten scans, and profiles of 255 markers.
    assert effort.SCANNED_PIXELS_MAX >= 40_000_000 * 10
    assert effort.MARKERS_MAX > 255
