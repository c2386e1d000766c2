"""What every generator makes: turns of text, and the images that the text refers to in order.

An image stands in a turn's text as ``IMAGE``, the three special tokens that the chat template
writes for an image part; training and evaluation widen the middle one to the image's own length.
"""

from dataclasses import dataclass
from random import Random

from PIL.Image import Image

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a test assistant.",
    "Answer in one word.",
    "Be brief.",
    "Answer the question.",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; ``role`` is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that end with the assistant's; every assistant turn is an answer to learn."""

    turns: tuple[Turn, ...]
    images: tuple[Image, ...] = ()

    @property
    def answer(self) -> str:
        """The last answer, the one that evaluation asks for."""
        return self.turns[-1].text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question with its one right answer."""

    question: str
    answer: str

    @property
    def turns(self) -> tuple[Turn, Turn]:
        """The user's turn and the assistant's."""
        return Turn("user", self.question), Turn("assistant", self.answer)


def sometimes_a_system_prompt(rng: Random, share: float) -> tuple[Turn, ...]:
    """Return one of the short system prompts in this share of the calls, else nothing."""
    if rng.random() < share:
        return (Turn("system", rng.choice(SYSTEM_PROMPTS)),)
    return ()
