"""Small pictures as files, the processors that read them, and chats that see."""

import io
import struct
from zlib import crc32

import numpy as np
from PIL import Image as Pillow
from small_tokenizers import byte_level, wrapped
from tokenizers import AddedToken
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from surefoot.chat import Chat, ImageLimits
from surefoot.chat.images import rgb_pixels
from surefoot.chat.processor import ImageProcessor
from surefoot.chat.request import ChatInput, Image, Message, Role
from surefoot.chat.vision import Placeholder, Vision

# As spark's; its tower looks at squares of 16 pixels, two by two of which are one token.
QWEN = {
    "size": {"shortest_edge": 64 * 64, "longest_edge": 96 * 96},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
# As published for qwen3_vl: from 256 x 256 to 4096 x 4096 pixels.
QWEN_FULL = QWEN | {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}
GEMMA = {"max_soft_tokens": 70}

# What Qwen's templates write, and Gemma's.
SEEING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FENCELESS = SEEING.replace("<|vision_start|>", "").replace("<|vision_end|>", "")


def qwen(**settings):
    return ImageProcessor(Qwen2VLImageProcessorPil(**QWEN | settings))


def gemma(**settings):
    return ImageProcessor(Gemma4ImageProcessorPil(**GEMMA | settings))


def encoded(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def solid(colour, size=(64, 64)):
    return encoded(Pillow.new("RGB", size, colour))


def from_rows(rows):
    """Return the picture of rows of (red, green, blue)."""
    return Pillow.fromarray(np.array(rows, dtype=np.uint8))


def noise(width, height, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def read(data, limits=None, path="messages[0].content[0]"):
    return rgb_pixels(Image(data, path), f"image 1 ({path})", limits or ImageLimits())


def array(data):
    return np.asarray(read(data))


def oriented(orientation):
    exif = Pillow.Exif()
    exif[0x112] = orientation
    return exif


def png_announcing(width, height):
    """Return a PNG file whose header says any size, with the checksum that belongs to it."""
    data = bytearray(solid("red", (8, 8)))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", crc32(data[12:29]))
    return bytes(data)


def consumed(processor, data):
    """Return the media item of one file."""
    return processor.item(read(data), place="image 1", param="messages")


def seeing_tokenizer(template=SEEING):
    tokenizer = byte_level()
    tokenizer.add_special_tokens(
        [
            AddedToken(one, normalized=False)
            for one in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
        ]
    )
    return wrapped(tokenizer, template)


def seeing_chat(template=SEEING, *, processor=None, context_tokens=4096, limits=None):
    """Return a chat that takes images, and its tokenizer."""
    tokenizer = seeing_tokenizer(template)
    one = tokenizer.backend_tokenizer.token_to_id
    processor = processor or qwen()
    fence = ((one("<|vision_start|>"),), (one("<|vision_end|>"),)) if processor.fenced else ()
    vision = Vision(
        processor,
        Placeholder(one("<|image_pad|>"), "<|image_pad|>", *fence),
        reserved={one("<|video_pad|>"): "<|video_pad|>"},
        context_tokens=context_tokens,
        limits=limits or ImageLimits(),
    )
    return Chat(tokenizer, vision), tokenizer


def asked(*messages):
    """Return a conversation; a message is a text, or a list of texts and files, the user's."""
    made = []
    for index, parts in enumerate(messages):
        path = f"messages[{index}].content"
        content = (
            parts
            if isinstance(parts, str)
            else tuple(
                Image(part, f"{path}[{at}]") if isinstance(part, bytes) else part
                for at, part in enumerate(parts)
            )
        )
        made.append(Message(role=Role.USER, content=content))
    return ChatInput(tuple(made))


def prompt_of(chat, request):
    return chat.prompt(request, list(chat.media(request)))
