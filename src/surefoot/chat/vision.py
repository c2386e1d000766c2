"""A model's sight: images to media items, and their places in a prompt.

In a template's text an image is one placeholder token, the one that ``config.json`` calls
``image_token_id``. Only the template can write it: a client's text never becomes a special token,
and a raw prompt that holds one is refused. Here it becomes as many as the tower gives features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from surefoot.chat.images import ImageLimits, rgb_pixels
from surefoot.chat.processor import ImageProcessor, load_processor
from surefoot.chat.request import Image
from surefoot.errors import RequestError, SetupError, TooLarge
from surefoot.prompt import MediaItem, MediaSpan, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NO_PLACE = "its tokenizer has no special token that stands for an image"


@dataclass(frozen=True, slots=True)
class TextOnly:
    """A model without sight, and why, if it could be expected to see."""

    why: str = ""

    def refuse(self, images: Sequence[Image]) -> None:
        """Refuse images by the place of the first.

        Raises:
            RequestError: there is one.
        """
        if images:
            reason = f": {self.why}" if self.why else ""
            raise RequestError(
                f"{_place(1, images[0])}: this model takes text only{reason}",
                param=images[0].path,
            )


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The token that stands for an image, and what is written around a row of them."""

    token: int
    spelled: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class Vision:
    """What a model that takes images needs besides its tokenizer."""

    def __init__(
        self,
        processor: ImageProcessor,
        placeholder: Placeholder,
        *,
        reserved: Mapping[int, str],
        context_tokens: int | None,
        limits: ImageLimits,
    ) -> None:
        """Bind a processor to the tokens of its model.

        Args:
            processor: of the model.
            placeholder: of an image.
            reserved: every token that stands for media of any kind, and its spelling.
            context_tokens: images that fill it are refused before they are all decoded.
            limits: of one request.
        """
        self.placeholder = placeholder
        self._processor = processor
        self._reserved = {placeholder.token: placeholder.spelled, **reserved}
        self._context_tokens = context_tokens
        self._limits = limits

    def items(self, images: Sequence[Image]) -> Iterator[MediaItem]:
        """Yield what the tower consumes of each image, in order; each ``next`` decodes one.

        Raises:
            TooLarge: they are too many, or one exceeds a limit.
            RequestError: one cannot be read, or they do not fit the model's context.
        """
        if len(images) > self._limits.images:
            extra = images[self._limits.images]
            raise TooLarge(
                f"{_place(self._limits.images + 1, extra)} is one too many; a request may hold "
                f"{self._limits.images:,} images",
                param=extra.path,
            )
        tokens = item_bytes = 0
        for number, image in enumerate(images, 1):
            place = _place(number, image)
            pixels = rgb_pixels(image, place, self._limits)
            item = self._processor.item(pixels, place=place, param=image.path)
            tokens += item.tokens
            item_bytes += len(item.data)
            if item_bytes > self._limits.item_bytes:
                raise TooLarge(
                    f"{place} is too much: what this model sees of a request's images may have "
                    f"{self._limits.item_bytes:,} bytes, and up to this one it has {item_bytes:,}",
                    param=image.path,
                )
            if self._context_tokens is not None and tokens >= self._context_tokens:
                raise RequestError(
                    f"{place}, {pixels.width:,} x {pixels.height:,} pixels, is {item.tokens:,} "
                    f"tokens to this model; the images up to it are {tokens:,}, and the context "
                    f"is {self._context_tokens:,}",
                    param=image.path,
                    code="context_length_exceeded",
                )
            yield item

    def places(self, tokens: Sequence[int]) -> int:
        """Return how many images a template has written."""
        return tokens.count(self.placeholder.token)

    def expanded(self, tokens: list[int], media: Sequence[MediaItem]) -> Prompt:
        """Return the prompt in which every placeholder is as long as its image, first to last.

        Args:
            tokens: as the template wrote them.
            media: at least as many items as placeholders.
        """
        places = [at for at, token in enumerate(tokens) if token == self.placeholder.token]
        assert len(places) <= len(media), (len(places), len(media))
        expanded: list[int] = []
        spans = []
        begin = 0
        for at, item in zip(places, media, strict=False):
            expanded += chain(tokens[begin:at], self.placeholder.before)
            spans.append(MediaSpan(len(expanded), item.tokens, item.name))
            expanded += chain([self.placeholder.token] * item.tokens, self.placeholder.after)
            begin = at + 1
        return Prompt.of(expanded + tokens[begin:], tuple(spans))

    def refuse_reserved(self, tokens: Sequence[int]) -> None:
        """Refuse a raw prompt in which a token stands for media that it cannot bring.

        Raises:
            RequestError: there is one.
        """
        for token in self._reserved.keys() & set(tokens):
            raise RequestError(
                f"'prompt' holds token {token}, {self._reserved[token]!r}, which stands for media; "
                "send images in 'messages' to /v1/chat/completions",
                param="prompt",
            )


def load_vision(
    source: str, tokenizer: "PreTrainedTokenizerFast", limits: ImageLimits
) -> Vision | TextOnly:
    """Load what a model needs to see; one that lacks any of it takes text only.

    Args:
        source: a local folder, or a hub id.
        tokenizer: of the same model.
        limits: of one request.
    """
    from transformers import AutoConfig  # noqa: PLC0415

    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return TextOnly()
    settings: dict[str, Any] = config.to_dict()
    if not settings.get("vision_config"):
        return TextOnly()
    try:
        processor = load_processor(source)
        placeholder = _placeholder(settings, tokenizer, fenced=processor.fenced)
    except SetupError as error:
        return TextOnly(str(error))
    stand_for_media = [settings.get(f"{kind}_token_id") for kind in ("video", "audio")]
    return Vision(
        processor,
        placeholder,
        reserved={
            token: tokenizer.backend_tokenizer.id_to_token(token) or ""
            for token in stand_for_media
            if token is not None
        },
        context_tokens=config.get_text_config().to_dict().get("max_position_embeddings"),
        limits=limits,
    )


def _placeholder(
    settings: Mapping[str, Any], tokenizer: "PreTrainedTokenizerFast", *, fenced: bool
) -> Placeholder:
    token = settings.get("image_token_id")
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().get(token)
    # Text that merely looks like a token that is not special could not be told from it.
    if token is None or added is None or not added.special:
        raise SetupError(_NO_PLACE)
    if not fenced:
        return Placeholder(token, added.content)
    begin, end = settings.get("boi_token_id"), settings.get("eoi_token_id")
    if begin is None or end is None:
        raise SetupError(_NO_PLACE)
    return Placeholder(token, added.content, (begin,), (end,))


def _place(number: int, image: Image) -> str:
    return f"image {number} ({image.path})"
