"""What is taught at which step: the mix of tasks as a function of progress from 0 to 1."""

from random import Random
from typing import NamedTuple, TypeAlias

from models.spark.conversation import Conversation
from models.spark.facts import facts
from models.spark.fonts import Fonts
from models.spark.hidden_code import hidden_code, two_codes
from models.spark.looking import after, one_picture, two_pictures
from models.spark.small_talk import chat, count, repeat

# A text batch is about this many tokens, however long its conversations.
TEXT_TOKENS = 1400
PICTURE_ROWS = 24
TWO_PICTURE_ROWS = 16
CHARACTERS_PER_TOKEN = 2.6


class Lines(NamedTuple):
    """How often lists of this many lines are taught, and how much is asked about each."""

    weight: float
    fewest: int
    most: int
    questions: int


# Until which progress, what: long lists come once short ones are understood.
FACTS_BY_PROGRESS: tuple[tuple[float, tuple[Lines, ...]], ...] = (
    (0.08, (Lines(1, 2, 6, 6),)),
    (0.2, (Lines(1, 2, 12, 6),)),
    (0.4, (Lines(0.4, 3, 12, 6), Lines(0.6, 10, 35, 8))),
    (
        1.0,
        (
            Lines(0.25, 2, 12, 5),
            Lines(0.3, 10, 30, 8),
            Lines(0.23, 25, 60, 10),
            Lines(0.22, 60, 110, 14),
        ),
    ),
)

Lesson: TypeAlias = list[Conversation]


def first_text(rng: Random, progress: float) -> Lesson:
    """Teach to copy: repeats mostly, and short lists, and codes hidden in little text."""
    chance = rng.random()
    if chance < (0.4 if progress < 0.4 else 0.15):
        return [repeat(rng, 16) for _ in range(12)]
    if chance < 0.45:
        return _hidden(rng, 5, 40 if progress < 0.5 else 100)
    if chance < 0.5:
        return [count(rng) if rng.random() < 0.6 else chat(rng) for _ in range(12)]
    if progress < 0.4:
        return _facts(rng, 2, 5, 6)
    return _facts(rng, 2, 10, 6) if progress < 0.75 else _facts(rng, 4, 20, 8)


def text(rng: Random, progress: float, fonts: Fonts) -> Lesson:
    """Teach everything that is text, in contexts that grow; a few end with a picture."""
    chance = rng.random()
    if chance < 0.3:
        longest = 120 if progress < 0.15 else 250 if progress < 0.35 else 480
        return _hidden(rng, 5, longest, fonts)
    if chance < 0.4:
        return _small_talk(rng, 3 if progress < 0.1 else 8)
    return _facts_growing(rng, progress, fonts)


def pictures(rng: Random, fonts: Fonts) -> Lesson:
    """Teach to see; one lesson in four is about two pictures."""
    if rng.random() < 0.25:
        return [two_pictures(rng, fonts) for _ in range(TWO_PICTURE_ROWS)]
    kinds = rng.choices(("solid", "shape", "digit"), (0.15, 0.38, 0.47), k=PICTURE_ROWS)
    return [one_picture(rng, fonts, kind) for kind in kinds]


def _hidden(rng: Random, shortest: int, longest: int, fonts: Fonts | None = None) -> Lesson:
    """Hide codes in text of one length, in tokens, drawn evenly on a logarithmic scale."""
    tokens = shortest * (longest / shortest) ** rng.random()
    if rng.random() < 0.3:
        tokens = rng.uniform(shortest, longest)
    characters = int(tokens * CHARACTERS_PER_TOKEN)
    lesson: Lesson = []
    for _ in range(max(1, int(TEXT_TOKENS / (tokens + 45)))):
        hidden = two_codes if rng.random() < 0.25 else hidden_code
        conversation = hidden(rng, characters)
        if fonts is not None and rng.random() < 0.1:
            conversation = after(conversation.turns, rng, fonts)
        lesson.append(conversation)
    return lesson


def _facts(
    rng: Random, fewest: int, most: int, questions: int, fonts: Fonts | None = None
) -> Lesson:
    tokens = (fewest + most) / 2 * 12 + questions * 16 + 10
    lesson: Lesson = []
    for _ in range(max(1, int(TEXT_TOKENS / tokens))):
        conversation = facts(rng, fewest, most, questions)
        if fonts is not None and rng.random() < 0.08:
            conversation = after(conversation.turns, rng, fonts)
        lesson.append(conversation)
    return lesson


def _facts_growing(rng: Random, progress: float, fonts: Fonts) -> Lesson:
    choices = next(choices for until, choices in FACTS_BY_PROGRESS if progress < until)
    chosen = rng.choices(choices, [choice.weight for choice in choices])[0]
    return _facts(rng, chosen.fewest, chosen.most, chosen.questions, fonts)


def _small_talk(rng: Random, words: int) -> Lesson:
    lesson: Lesson = []
    for _ in range(24):
        chance = rng.random()
        if chance < 0.5:
            lesson.append(repeat(rng, words))
        else:
            lesson.append(count(rng) if chance < 0.75 else chat(rng))
    return lesson
