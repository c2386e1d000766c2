"""How often spark is right, on samples that it was not trained on.

Every row of ``TASKS`` is a generator of conversations, drawn from seeds of its own; the rows that
are *apart* use generators and fonts of ``held_out``, which training never imports. An answer counts
when all of it is right. ``CARD.md`` shows what this writes.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import torch
from PIL import Image

from models.spark import facts, held_out, looking, small_talk
from models.spark.conversation import IMAGE, Conversation, Exchange
from models.spark.fonts import BUILT_IN, Fonts, training_fonts, unseen_fonts
from models.spark.hidden_code import LAYOUTS, MINE, SECRET, Wording, hidden_code, two_codes
from models.spark.judge import Judge
from models.spark.pictures import COLORS, Picture, digit, shape, tint
from models.spark.prose import prose

SAMPLES = 500
HERE = Path(__file__).parent
RESULTS = HERE / "evaluation.json"
# Text of about 20 to 400 tokens, by characters: generated prose has 2.25 of them to a token, real
# prose 1.8.
CHARACTERS = (45, 900)
REAL_CHARACTERS = (36, 720)

Sampler: TypeAlias = Callable[[Random], Conversation]
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the table: ``target`` is the least share right that is promised, if any."""

    name: str
    sample: Sampler
    target: float | None = None
    apart: bool = False


def tasks(seen: Fonts, unseen: Fonts) -> tuple[Task, ...]:
    """Return all rows; digits are drawn with these fonts."""
    return (
        Task("solid colour, 32 to 256 px, square or not", _solid, 0.99),
        Task("colour of a shape", _about_shape("What color is the shape?"), 0.98),
        Task("background behind a shape", _about_shape("What color is the background?")),
        Task("shape", _about_shape("What shape?"), 0.89),
        Task("clean digit", lambda rng: held_out.clean_digit(rng, BUILT_IN), 0.98),
        Task("hard digit", lambda rng: _one_digit(rng, seen), 0.85),
        Task("colour of the first or second of two solid images", _two_solids, 0.96),
        Task("colour after about 600 tokens of text", _solid_after_prose),
        Task("code of a name, 3 to 40 lines", lambda rng: facts.plain_facts(rng, 3, 40), 0.98),
        Task("code of a name, 60 to 95 lines", lambda rng: facts.plain_facts(rng, 60, 95), 0.88),
        Task("Unknown for an absent name, 3 to 40 lines", _absent, 0.97),
        Task(
            "code of a name, mixed formats, 3 to 40 lines", lambda rng: facts.facts(rng, 3, 40, 1)
        ),
        Task("my code, 20 to 400 tokens", _hidden(MINE), 0.95),
        Task("secret code, 20 to 400 tokens", _hidden(SECRET), 0.95),
        Task(
            "my code and a secret one, both asked",
            lambda rng: two_codes(rng, rng.randint(*CHARACTERS)),
        ),
        Task("repeat one to six words", lambda rng: small_talk.repeat(rng, 6)),
        Task("count", small_talk.count),
        Task("small talk", small_talk.chat),
        Task(
            "solid colour, like a photograph",
            lambda rng: held_out.tinted_scene(rng, seen),
            apart=True,
        ),
        Task("colour of a shape drawn otherwise", _other_shape("color"), apart=True),
        Task("shape drawn otherwise", _other_shape("shape"), apart=True),
        Task(
            "clean digit, unseen fonts", lambda rng: held_out.clean_digit(rng, unseen), apart=True
        ),
        Task("hard digit, unseen fonts", lambda rng: _one_digit(rng, unseen), apart=True),
        Task("code of an unseen name, 10 to 30 lines", held_out.new_name_facts, apart=True),
        Task("my code, real prose, 20 to 400 tokens", _hidden_in_prose(MINE), apart=True),
        Task("secret code, real prose, 20 to 400 tokens", _hidden_in_prose(SECRET), apart=True),
    )


def evaluate(
    checkpoint: Path, say: Say, *, samples: int = SAMPLES, only: str = ""
) -> dict[str, Any]:
    """Return all rows with their Wilson intervals; ``only`` keeps the tasks whose name has it."""
    torch.set_num_threads(1)
    judge = Judge(checkpoint)
    rows: list[dict[str, Any]] = []
    for task in tasks(training_fonts(), unseen_fonts()):
        if only not in task.name:
            continue
        rng = Random(f"held out: {task.name}")
        right = sum(judge.right(task.sample(rng)) for _ in range(samples))
        low, high = wilson(right, samples)
        rows.append(
            {
                "task": task.name,
                "apart": task.apart,
                "right": right,
                "samples": samples,
                "low": round(low, 4),
                "high": round(high, 4),
                "target": task.target,
            }
        )
        short = (
            "" if task.target is None or right >= task.target * samples else "  SHORT OF ITS TARGET"
        )
        say(f"{task.name:52s} {right / samples:.3f}  [{low:.3f}, {high:.3f}]{short}")
    return {"samples_per_task": samples, "dtype": "bfloat16", "rows": rows}


def write_results(results: dict[str, Any], path: Path = RESULTS) -> None:
    """Write the table that the card shows and the tests check."""
    path.write_text(json.dumps(results, indent=1) + "\n")


def wilson(right: int, samples: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % score interval of a share (Wilson 1927)."""
    share = right / samples
    centre = share + z**2 / (2 * samples)
    spread = z * math.sqrt(share * (1 - share) / samples + z**2 / (4 * samples**2))
    scale = 1 + z**2 / samples
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _solid_image(rng: Random) -> tuple[Image.Image, str]:
    color = rng.choice(COLORS)
    width, height = rng.randint(32, 256), rng.randint(32, 256)
    if rng.random() < 0.5:
        height = width
    return Image.new("RGB", (width, height), tint(color, rng)), color.capitalize()


def _solid(rng: Random) -> Conversation:
    image, color = _solid_image(rng)
    return Conversation(Exchange(IMAGE + rng.choice(looking.ASK_COLOR), color).turns, (image,))


def _two_solids(rng: Random) -> Conversation:
    images, colors = zip(*(_solid_image(rng) for _ in range(2)), strict=True)
    index = rng.randrange(2)
    question = f"What color is the {('first', 'second')[index]} image?"
    return Conversation(Exchange(IMAGE * 2 + question, colors[index]).turns, images)


def _solid_after_prose(rng: Random) -> Conversation:
    image, color = _solid_image(rng)
    question = prose(rng, 1350) + "\n" + IMAGE + "One word: what color?"
    return Conversation(Exchange(question, color).turns, (image,))


def _about_shape(question: str) -> Sampler:
    def sample(rng: Random) -> Conversation:
        picture = shape(rng, BUILT_IN)
        answer = _answer(picture, question)
        return Conversation(Exchange(IMAGE + question, answer).turns, (picture.image,))

    return sample


def _answer(picture: Picture, question: str) -> str:
    answers = {"What shape?": picture.shape, "What color is the background?": picture.background}
    answer = answers.get(question, picture.color)
    assert answer is not None
    return answer.capitalize()


def _one_digit(rng: Random, fonts: Fonts) -> Conversation:
    picture = digit(rng, fonts)
    turns = Exchange(IMAGE + rng.choice(looking.ASK_DIGIT), str(picture.digit)).turns
    return Conversation(turns, (picture.image,))


def _other_shape(ask: str) -> Sampler:
    return lambda rng: held_out.other_shape(rng, BUILT_IN, ask=ask)


def _absent(rng: Random) -> Conversation:
    return facts.plain_facts(rng, 3, 40, absent=True)


def _hidden(wording: Wording) -> Sampler:
    def sample(rng: Random) -> Conversation:
        layout = rng.choice(LAYOUTS)
        return hidden_code(rng, rng.randint(*CHARACTERS), wording=wording, layout=layout)

    return sample


def _hidden_in_prose(wording: Wording) -> Sampler:
    def sample(rng: Random) -> Conversation:
        text = held_out.real_prose(rng, rng.randint(*REAL_CHARACTERS))
        return hidden_code(rng, 0, wording=wording, layout=rng.choice(LAYOUTS), text=text)

    return sample
