"""The checkpoint as a user gets it: stock classes, bfloat16, greedy answers.

There is no stock processor for whole prompts without torchvision, so the judge does what a server
does: render the template, run the image processor, widen each image's token.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from models.spark.conversation import Conversation, Turn

IMAGE_TOKEN = "<|image_pad|>"
TOKENS_PER_PATCH = 1 / 4


class Judge:
    """Loads a checkpoint folder and says what it answers."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        self._dtype = dtype
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._processor = AutoImageProcessor.from_pretrained(folder)
        self._network = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
        self._image = self._tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        self._end = self._tokenizer.convert_tokens_to_ids("<|im_end|>")

    def right(self, conversation: Conversation) -> bool:
        """Whether greedy decoding gives the conversation's last answer, whole, and then stops.

        One pass over prompt and answer decides it: every token of the answer, and the end after
        it, must be the likeliest after what precedes.
        """
        inputs = self._inputs(conversation.turns[:-1], conversation.images)
        wanted = [*self._tokenizer(conversation.answer)["input_ids"], self._end]
        ids = torch.cat([inputs["input_ids"], torch.tensor([wanted])], dim=1)
        inputs["input_ids"] = ids
        if conversation.images:
            inputs["mm_token_type_ids"] = (ids == self._image).int()
        with torch.no_grad():
            output = self._network(**inputs, use_cache=False, logits_to_keep=len(wanted) + 1)
        likeliest: list[int] = output.logits[0, :-1].argmax(-1).tolist()
        return likeliest == wanted

    def answer(self, turns: Sequence[Turn], images: Sequence[Image] = (), most: int = 24) -> str:
        """Return what ``generate`` says, at most ``most`` tokens."""
        inputs = self._inputs(turns, images)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        with torch.no_grad():
            output = self._network.generate(
                **inputs, max_new_tokens=most, do_sample=False, pad_token_id=0
            )
        said = output[0, inputs["input_ids"].shape[1] :]
        text: str = self._tokenizer.decode(said, skip_special_tokens=True)
        return text

    def tokens(self, conversation: Conversation) -> int:
        """How many tokens the prompt of the last question has."""
        inputs = self._inputs(conversation.turns[:-1], conversation.images)
        return int(inputs["input_ids"].shape[1])

    def _inputs(self, turns: Sequence[Turn], images: Sequence[Image]) -> dict[str, Tensor]:
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        inputs: dict[str, Tensor] = {}
        if images:
            processed = self._processor(images=list(images), return_tensors="pt")
            inputs["pixel_values"] = processed["pixel_values"].to(self._dtype)
            inputs["image_grid_thw"] = processed["image_grid_thw"]
            pieces = text.split(IMAGE_TOKEN)
            assert len(pieces) == len(images) + 1, "one image token for each image"
            text = pieces[0]
            for grid, piece in zip(processed["image_grid_thw"], pieces[1:], strict=True):
                text += IMAGE_TOKEN * int(grid.prod() * TOKENS_PER_PATCH) + piece
        ids = self._tokenizer(text, return_tensors="pt")["input_ids"]
        if images:
            inputs["mm_token_type_ids"] = (ids == self._image).int()
        return {"input_ids": ids, **inputs}
