"""The model's own image processor: final pixels to what its vision tower consumes, one image alone.

Always the Pillow form of the processor, installed torchvision or not: its bits are those of integer
resampling and numpy, on every machine. Scaling is the processor's affair and never ours.

    family   an item's tensor, float32                       its grid         placeholder tokens
    Qwen     [patches, channels x temporal x patch x patch]  (1, rows, cols)  patches / merge ** 2
    Gemma    [patches, patch x patch x channels]             (rows, cols)     patches / pool ** 2

Patches are in the processor's order: row by row for Gemma, whose padding is cut off, and in squares
of ``merge`` x ``merge`` for Qwen. The rows and columns are of patches; from them the engine derives
every position.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from surefoot import identity
from surefoot.errors import RequestError, SetupError
from surefoot.identity import PixelsName
from surefoot.prompt import MediaItem

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels
    from transformers.image_processing_backends import PilBackend

# An image of the history comes again with every turn; to make its tensor anew takes longer than to
# decode its file. A megapixel is 24 MB.
MEMO_BYTES = 64 * 2**20


class _Consumed(NamedTuple):
    """A processor's output for one image: patches, their grid, and how many tokens they become."""

    patches: "np.ndarray[Any, Any]"
    grid: tuple[int, ...]
    tokens: int


class _Family(NamedTuple):
    """What is known of the processors of one family; ``fenced`` as ``ImageProcessor.fenced``."""

    consumed: Callable[[Mapping[str, Any], Any], _Consumed]
    fenced: bool


def load_processor(source: str) -> "ImageProcessor":
    """Load the image processor of a model: a local folder, or a hub id.

    Raises:
        SetupError: there is none, or none that is known here.
    """
    from transformers import AutoImageProcessor  # noqa: PLC0415

    try:
        processor = AutoImageProcessor.from_pretrained(
            source, backend="pil", trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise SetupError(f"no image processor could be loaded: {error}") from error
    return ImageProcessor(processor)


class ImageProcessor:
    """Makes media items of pixels, and keeps the latest.

    ``digest`` stands for every setting of the processor, in the name of all it makes. ``fenced``
    says that an image's tokens stand between a begin and an end that no template writes.
    """

    def __init__(self, processor: "PilBackend") -> None:
        """Take a processor of transformers.

        Raises:
            SetupError: its class is not one whose output is understood here.
        """
        kind = type(processor).__name__
        if kind not in _FAMILIES:
            raise SetupError(f"the image processor {kind} is not known")
        self._processor = processor
        self._consumed, self.fenced = _FAMILIES[kind]
        self.digest = identity.settings_digest("processor", _settings(kind, processor.to_dict()))
        self._memo = _Memo(MEMO_BYTES)

    def item(self, pixels: "Pixels", *, place: str, param: str) -> MediaItem:
        """Return what the tower consumes of one image.

        Args:
            pixels: of mode RGB.
            place: which image it is, for refusals.
            param: its path in the request, for refusals.

        Raises:
            RequestError: the processor refuses a picture of this size.
        """
        width, height = pixels.size
        name = identity.pixels_name(self.digest, width, height, pixels.tobytes())
        known = self._memo.get(name)
        if known is None:
            known = self._fresh(pixels, place, param)
            self._memo.put(name, known)
        return known

    def _fresh(self, pixels: "Pixels", place: str, param: str) -> MediaItem:
        try:
            output = self._processor(images=[pixels], return_tensors="np")
        except ValueError as error:
            width, height = pixels.size
            raise RequestError(
                f"this model's image processor refuses {place}, {width:,} x {height:,} pixels: "
                f"{error}",
                param=param,
            ) from error
        made = self._consumed(output, self._processor)
        data = np.ascontiguousarray(made.patches, dtype="<f4").tobytes()
        return MediaItem(
            name=identity.media_name(self.digest, "float32", made.patches.shape, made.grid, data),
            kind="image",
            tokens=made.tokens,
            dtype="float32",
            shape=made.patches.shape,
            grid=made.grid,
            data=data,
        )


class _Memo:
    """The latest items by the name of their pixels, in at most ``room_bytes``."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._items: OrderedDict[PixelsName, MediaItem] = OrderedDict()

    def get(self, name: PixelsName) -> MediaItem | None:
        item = self._items.get(name)
        if item is not None:
            self._items.move_to_end(name)
        return item

    def put(self, name: PixelsName, item: MediaItem) -> None:
        self._items[name] = item
        self._room_bytes -= len(item.data)
        while self._room_bytes < 0:
            _, oldest = self._items.popitem(last=False)
            self._room_bytes += len(oldest.data)


def _settings(kind: str, settings: Mapping[str, Any]) -> str:
    """Return a processor's class and settings as text that is the same for the same settings."""
    return json.dumps([kind, settings], sort_keys=True, separators=(",", ":"))


def _qwen(output: Mapping[str, Any], processor: Any) -> _Consumed:
    grid = tuple(int(one) for one in output["image_grid_thw"][0])
    patches = output["pixel_values"]
    return _Consumed(patches, grid, len(patches) // processor.merge_size**2)


def _gemma(output: Mapping[str, Any], _: Any) -> _Consumed:
    # Real patches come first; padding has the position (-1, -1).
    positions = output["image_position_ids"][0]
    cols, rows = (int(one) + 1 for one in positions.max(axis=0))
    patches = output["pixel_values"][0, : rows * cols]
    return _Consumed(patches, (rows, cols), int(output["num_soft_tokens_per_image"][0]))


# transformers:src/transformers/models/gemma4/processing_gemma4.py (replace_image_token) for the
# fence; the templates of the Qwen families write theirs.
_FAMILIES: Mapping[str, _Family] = {
    "Qwen2VLImageProcessorPil": _Family(_qwen, fenced=False),
    "Gemma4ImageProcessorPil": _Family(_gemma, fenced=True),
}
