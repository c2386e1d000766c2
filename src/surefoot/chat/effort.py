"""Files that would keep a decoder busy far longer than a picture of their size should.

A decode cannot be interrupted and other turns wait for it, so what is known to be slow is refused
before it begins. Each limit is far above what programs write and was chosen by measuring: below
them a file of 20 MB takes at most about a second more than its pixels do.

    a JPEG     its markers before the first scan, and fill bytes between them, are walked in Python
               and joined anew; a scan passes over all of a picture and may be a few bytes long
    a PNG      every colour profile in it is unfolded, to a megabyte each
    a BMP      run-length coding is read by Python, byte by byte
    a TIFF     may point to one strip any number of times
"""

from typing import Literal

from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from surefoot.chat.request import Image
from surefoot.errors import RequestError

MARKERS_MAX = 400  # a colour profile fills at most 255 of them
FILL_MAX = 1_000  # bytes
SCANS_MAX = 100
SCANNED_PIXELS_MAX = 800_000_000  # scans x pixels; programs write about ten scans
PROFILES_MAX = 16
TILES_MAX = 70_000  # a strip for each row of the longest side

_SCAN, _PROFILE = b"\xff\xda", b"iCCP"
_START_OF_SCAN, _FILL = 0xDA, 0xFF
_STRIPS = (
    273,
    279,
    324,
    325,
)  # tags of a TIFF file that list where its pieces are, or their lengths
_BMP_COMPRESSION = slice(30, 34)  # where a BMP file says how it is compressed
_RUN_LENGTH = (1, 2)


def check_file(image: Image, place: str, reader: type[ImageFile]) -> None:
    """Refuse a file by its bytes, before it is opened.

    Raises:
        RequestError: it is of a form that takes too long.
    """
    data = image.data
    if reader is JpegImageFile:
        if data.count(_SCAN) > SCANS_MAX:
            raise _refusal(image, place, f"is a JPEG of more than {SCANS_MAX} scans")
        if not _few_markers(data):
            raise _refusal(image, place, f"is a JPEG of more than {MARKERS_MAX} markers")
    elif reader is PngImageFile and data.count(_PROFILE) > PROFILES_MAX:
        raise _refusal(image, place, "is a PNG of many colour profiles")
    elif reader is BmpImageFile and int.from_bytes(data[_BMP_COMPRESSION], "little") in _RUN_LENGTH:
        raise _refusal(image, place, "is a BMP with run-length coding")
    elif reader is TiffImageFile and (strips := _strips(data)) > TILES_MAX:
        raise _refusal(image, place, f"is made of {strips:,} strips")


def check_tiles(image: Image, place: str, file: ImageFile) -> None:
    """Refuse a file by what its header says, before it is decoded; its size is checked already.

    Raises:
        RequestError: it is of a form that takes too long.
    """
    width, height = file.size
    if len(file.tile) > TILES_MAX:
        raise _refusal(image, place, f"is made of {len(file.tile):,} strips")
    if isinstance(file, JpegImageFile):
        scans = image.data.count(_SCAN)
        if scans * width * height > SCANNED_PIXELS_MAX:
            raise _refusal(image, place, f"is a JPEG of {scans} scans of {width:,} x {height:,}")


def _few_markers(data: bytes) -> bool:
    """Walk a JPEG's markers to its first scan; what is damaged is for the reader to say."""
    at, markers, fill = 2, 0, 0
    while at + 4 <= len(data) and markers <= MARKERS_MAX and fill <= FILL_MAX:
        if data[at] != _FILL:
            return True  # no marker where one belongs: the reader stops here
        marker = data[at + 1]
        if marker == _START_OF_SCAN:
            return True
        if marker in (_FILL, 0):
            fill += 1
            at += 1
            continue
        markers += 1
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return markers <= MARKERS_MAX and fill <= FILL_MAX


def _strips(data: bytes) -> int:
    """Return how many pieces a TIFF's first page says it has; damage counts as none."""
    order: Literal["little", "big"] = "little" if data.startswith(b"II") else "big"

    def number(at: int, width: int) -> int:
        return int.from_bytes(data[at : at + width], order)

    page = number(4, 4)
    entries = (page + 2 + 12 * entry for entry in range(number(page, 2)))
    return max((number(at + 4, 4) for at in entries if number(at, 2) in _STRIPS), default=0)


def _refusal(image: Image, place: str, what: str) -> RequestError:
    return RequestError(f"{place} {what}, which takes too long; save it anew", param=image.path)
