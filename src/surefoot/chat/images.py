"""An image file to final RGB pixels: the one rule by which bytes become a picture.

1. PNG, JPEG, WebP, GIF (first frame), BMP and TIFF (first page) are read, told apart by their first
   bytes alone. Forms that take far longer to decode than a picture of their size should, or that
   Pillow is known to decode wrongly, are refused: see ``effort`` and ``_check_tiff``.
2. The stored orientation is applied: EXIF's, or XMP's where EXIF has none. One that cannot be read
   counts as none.
3. Palettes become their colours; one grey is three equal samples; CMYK and YCbCr are converted
   arithmetically. Colour profiles and gamma are ignored.
4. Of 16-bit samples the high byte is kept, and their colour key is ignored. 32-bit and floating
   samples are refused: no range says what white is.
5. What is transparent (alpha, a colour key, a palette's alpha) lies over white, as on a page:
   ``round((alpha * colour + (255 - alpha) * 255) / 255)`` per sample.

Sizes are checked in the header, before anything is decoded. What a client calls the file is never
looked at.
"""

import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import TypeVar

import numpy as np
from PIL import Image as Pillow
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from surefoot.chat.effort import check_file, check_tiles
from surefoot.chat.request import Image
from surefoot.errors import RequestError, TooLarge

T = TypeVar("T")

# The readers themselves, not Pillow's registry: nothing that is installed later can join, and its
# own size check, a warning, is never asked.
_READERS: tuple[tuple[bytes, type[ImageFile]], ...] = (
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"\xff\xd8\xff", JpegImageFile),
    (b"RIFF", WebPImageFile),
    (b"GIF87a", GifImageFile),
    (b"GIF89a", GifImageFile),
    (b"BM", BmpImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
)
_ACCEPTED = "PNG, JPEG, WebP, GIF, BMP or TIFF"

# What Pillow is known to raise over a file that is not what it says it is; it asserts that, too.
_MALFORMED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    RuntimeError,
    struct.error,
)

# Beyond it the processors of the Qwen families refuse; one limit for all.
_ASPECT_MAX = 200

_PNG_DEPTH = 24  # the offset of the sample depth in a PNG file
_BITS_PER_SAMPLE, _COMPRESSION, _PHOTOMETRIC = 258, 259, 262  # tags of a TIFF file
_WHITE_IS_ZERO, _YCBCR, _UNCOMPRESSED = 0, 6, 1

_UPRIGHT = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
_PLAIN = frozenset({"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"})
_SEE_THROUGH = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_DEEP = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What images may be at most: bytes of a file, pixels, the longer side, images in a request.

    Decoding takes up to 16 bytes a pixel for a moment; 40 million pixels are 640 MB. ``item_bytes``
    bounds what a request holds until its turn ends: the tensors of all its images, 24 bytes a
    scaled pixel for the Qwen families.
    """

    bytes: int = 20 * 2**20
    pixels: int = 40_000_000
    side: int = 65_535
    images: int = 32
    item_bytes: int = 2**30


def rgb_pixels(image: Image, place: str, limits: ImageLimits) -> Pillow.Image:
    """Return an image's final pixels, a Pillow image of mode RGB that nothing else refers to.

    Args:
        image: the file.
        place: which image it is, for refusals: "image 2 (messages[0].content[1])".
        limits: of one image; their count is the caller's to check.

    Raises:
        TooLarge: the file, or the picture that its header announces, exceeds a limit.
        RequestError: it is not a picture that can be read.
    """
    if len(image.data) > limits.bytes:
        raise TooLarge(
            f"{place} has {len(image.data):,} bytes; at most {limits.bytes:,} are read",
            param=image.path,
        )
    reader = _reader(image, place)
    check_file(image, place, reader)
    pillow = _Asking(image, place, limits)
    file = pillow.ask(lambda: reader(BytesIO(image.data)))
    _check_size(image, place, file.size, limits)
    check_tiles(image, place, file)
    _check_tiff(image, place, file)
    pillow.ask(file.load)
    if reader is PngImageFile:
        _mend_colour_key(file, image.data[_PNG_DEPTH])
    _check_mode(image, place, file.mode)
    upright = pillow.ask(lambda: _upright(file))
    eight_bit = _high_bytes(upright) if upright.mode in _DEEP else upright
    return pillow.ask(lambda: _flat(eight_bit))


def _reader(image: Image, place: str) -> type[ImageFile]:
    known = (reader for signature, reader in _READERS if image.data.startswith(signature))
    reader = next(known, None)
    if reader is None:
        raise RequestError(f"{place} is not a {_ACCEPTED} file", param=image.path)
    return reader


class _Asking:
    """Asks Pillow about one image; what it cannot read is the client's to mend.

    Its warnings are about what a file says of itself, and would go to the operator.
    """

    def __init__(self, image: Image, place: str, limits: ImageLimits) -> None:
        self._image = image
        self._place = place
        self._limits = limits

    def ask(self, question: Callable[[], T]) -> T:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return question()
        except Pillow.DecompressionBombError as error:
            # Some readers look at the size themselves, as they open a file.
            raise TooLarge(
                f"{self._place} is larger than the {self._limits.pixels:,} pixels that are decoded",
                param=self._image.path,
            ) from error
        except _MALFORMED as error:
            reason = str(error) or type(error).__name__
            raise RequestError(
                f"{self._place} cannot be read, damaged or cut short: {reason}",
                param=self._image.path,
            ) from error


def _check_size(image: Image, place: str, size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    what = f"{place} is {width:,} x {height:,} pixels"
    if max(size) > limits.side:
        raise TooLarge(f"{what}; a side may have {limits.side:,}", param=image.path)
    if width * height > limits.pixels:
        raise TooLarge(f"{what}; at most {limits.pixels:,} are decoded", param=image.path)
    if max(size) > _ASPECT_MAX * min(size):
        raise RequestError(
            f"{what}; one side may be at most {_ASPECT_MAX} times the other", param=image.path
        )


def _check_tiff(image: Image, place: str, file: ImageFile) -> None:
    """Refuse what Pillow 13 reads as other colours than the file means."""
    if not isinstance(file, TiffImageFile):
        return
    bits = set(np.atleast_1d(file.tag_v2.get(_BITS_PER_SAMPLE, 1)).tolist())
    meaning = file.tag_v2.get(_PHOTOMETRIC)
    plain = file.tag_v2.get(_COMPRESSION, _UNCOMPRESSED) == _UNCOMPRESSED
    if bits - {1, 2, 4, 8, 16, 32}:
        what = f"{'-, '.join(str(one) for one in sorted(bits))}-bit samples"
    elif meaning == _WHITE_IS_ZERO and 16 in bits:
        what = "16-bit samples of which zero is white"
    elif meaning == _YCBCR and plain:
        what = "uncompressed YCbCr samples"
    else:
        return
    raise RequestError(
        f"{place} is a TIFF file with {what}, for which there is no rule; save it with 8 bits a "
        "sample, or as PNG",
        param=image.path,
    )


def _mend_colour_key(file: ImageFile, depth: int) -> None:
    """Make a PNG's colour key mean the samples that Pillow made of those the file holds."""
    key = file.info.get("transparency")
    if depth == 16:
        file.info.pop("transparency", None)
    elif depth in (2, 4) and file.mode == "L" and isinstance(key, int):
        # Samples were stretched to 0 to 255, their key was not.
        file.info["transparency"] = key * 255 // (2**depth - 1)


def _check_mode(image: Image, place: str, mode: str) -> None:
    if mode not in _PLAIN | _SEE_THROUGH | _DEEP:
        raise RequestError(
            f"{place} has samples of the kind {mode!r}, for which there is no rule; save it with 8 "
            "or 16 bits a sample",
            param=image.path,
        )


def _upright(file: ImageFile) -> Pillow.Image:
    # A TIFF file is turned as it is loaded, and says so from then on.
    try:
        orientation = file.getexif().get(Base.Orientation)
    except _MALFORMED:
        return file
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return file if turn is None else file.transpose(turn)


def _high_bytes(image: Pillow.Image) -> Pillow.Image:
    return Pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _flat(image: Pillow.Image) -> Pillow.Image:
    """Return an image as RGB, over white where it can be seen through."""
    if image.mode not in _SEE_THROUGH and not image.has_transparency_data:
        return image.convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    seen = image.convert("RGBA")
    page = Pillow.new("RGB", seen.size, "white")
    page.paste(seen, mask=seen.getchannel("A"))
    return page
