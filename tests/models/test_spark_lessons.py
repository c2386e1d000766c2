"""The generators: the same seed says the same, and every answer follows from what was said."""

import ast
from pathlib import Path
from random import Random

import numpy as np
import pytest

import models.spark
from models.spark import facts, held_out, hidden_code, lessons, looking, pictures, prose, small_talk
from models.spark.conversation import IMAGE
from models.spark.fonts import BUILT_IN

HERE = Path(models.spark.__file__).parent
GENERATORS = {
    "solid": lambda rng: looking.one_picture(rng, BUILT_IN, "solid"),
    "shape": lambda rng: looking.one_picture(rng, BUILT_IN, "shape"),
    "digit": lambda rng: looking.one_picture(rng, BUILT_IN, "digit"),
    "two pictures": lambda rng: looking.two_pictures(rng, BUILT_IN),
    "facts": lambda rng: facts.facts(rng, 3, 12, 4),
    "plain facts": lambda rng: facts.plain_facts(rng, 3, 12),
    "hidden code": lambda rng: hidden_code.hidden_code(rng, 300),
    "two codes": lambda rng: hidden_code.two_codes(rng, 300),
    "repeat": lambda rng: small_talk.repeat(rng, 6),
    "count": small_talk.count,
    "chat": small_talk.chat,
    "photograph": lambda rng: held_out.tinted_scene(rng, BUILT_IN),
    "other shape": lambda rng: held_out.other_shape(rng, BUILT_IN, ask="shape"),
    "clean digit": lambda rng: held_out.clean_digit(rng, BUILT_IN),
    "new names": held_out.new_name_facts,
}


def said(conversation):
    return conversation.turns, [(image.size, image.tobytes()) for image in conversation.images]


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
def test_a_seed_decides_all_that_a_generator_says_and_paints(generator):
    first, again, other = Random("one"), Random("one"), Random("other")
    says = [said(generator(first)) for _ in range(12)]
    assert says == [said(generator(again)) for _ in range(12)]
    assert says != [said(generator(other)) for _ in range(12)]


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
def test_a_conversation_ends_with_an_answer_and_has_an_image_for_each_place(generator):
    rng = Random(5)
    for _ in range(40):
        conversation = generator(rng)
        assert conversation.turns[-1].role == "assistant"
        assert conversation.turns[-2].role == "user"
        places = sum(turn.text.count(IMAGE) for turn in conversation.turns)
        assert places == len(conversation.images)


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.3, 0.6, 0.999])
def test_lessons_are_decided_by_seed_and_progress(progress):
    def lesson(seed):
        rng = Random(seed)
        return [
            said(one)
            for _ in range(6)
            for taught in (
                lessons.first_text(rng, progress),
                lessons.text(rng, progress, BUILT_IN),
                lessons.pictures(rng, BUILT_IN),
            )
            for one in taught
        ]

    assert lesson("a") == lesson("a")
    assert lesson("a") != lesson("b")


def test_the_asked_code_is_the_one_in_its_line_and_absent_names_are_unknown():
    rng = Random(7)
    for _ in range(100):
        present = facts.plain_facts(rng, 3, 40)
        listed, question = present.turns[0].text.split("\n\n")
        name = question.removeprefix("Which task does ").removesuffix(" have?")
        (line,) = [line for line in listed.splitlines() if line.startswith(f"{name} task ")]
        assert line.split()[2] == present.answer
        assert 3 <= len(listed.splitlines()) <= 40

        absent = facts.plain_facts(rng, 3, 40, absent=True)
        listed, question = absent.turns[0].text.split("\n\n")
        name = question.removeprefix("Which task does ").removesuffix(" have?")
        assert absent.answer == "Unknown"
        assert name not in listed


@pytest.mark.parametrize("layout", hidden_code.LAYOUTS)
@pytest.mark.parametrize("wording", [hidden_code.MINE, hidden_code.SECRET], ids=["mine", "secret"])
def test_a_hidden_code_is_said_before_the_text_and_asked_for_last(wording, layout):
    rng = Random(11)
    for _ in range(30):
        conversation = hidden_code.hidden_code(rng, 400, wording=wording, layout=layout)
        holder = {"one message": "user", "system": "system", "earlier turn": "user"}[layout]
        before = [turn for turn in conversation.turns if turn.role == holder]
        sentence = wording.says.format(code=conversation.answer)
        assert any(turn.text.startswith(sentence) for turn in before)
        assert conversation.turns[-2].text.endswith(wording.asks)
        assert (sentence in conversation.turns[-2].text) == (layout == "one message")


def test_text_to_hide_in_has_other_numbers_of_six_digits():
    text = prose.prose(Random(0), 100_000)
    numbers = [word.strip(".,:;") for word in text.split()]
    assert sum(word.isdigit() and len(word) == 6 for word in numbers) > 50


def test_no_two_colours_share_a_value():
    boxes = list(pictures.RANGES.items())
    for index, (one, its) in enumerate(boxes):
        for other, others in boxes[index + 1 :]:
            channels = zip(its, others, strict=True)
            apart = [low > top or bottom > high for (low, high), (bottom, top) in channels]
            assert any(apart), f"{one} and {other}"


def test_a_solid_picture_is_of_its_colour_and_a_shape_shows_both_of_its_colours():
    rng = Random(3)
    for _ in range(60):
        picture = pictures.solid(rng, BUILT_IN)
        means = np.asarray(picture.image).reshape(-1, 3).mean(0)
        box = pictures.RANGES[picture.color]
        known = [np.abs(means - value).max() for value in pictures.CANONICAL[picture.color]]
        # Noise is cut at the ends of the scale, which moves the mean by a few levels.
        inside = all(
            low - 8 <= mean <= high + 8 for mean, (low, high) in zip(means, box, strict=True)
        )
        assert inside or min(known) < 8
    shape = pictures.shape(Random(1), BUILT_IN)
    assert len(set(map(tuple, np.asarray(shape.image).reshape(-1, 3)[::7].tolist()))) >= 2


def test_nothing_that_trains_imports_what_is_held_out():
    users = set()
    for path in HERE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and "models.spark" in node.module:
                names = {alias.name for alias in node.names}
                if "held_out" in names | {node.module.rsplit(".", 1)[-1]}:
                    users.add(path.name)
    assert users == {"evaluate.py"}
    assert not set(held_out.NEW_NAMES) & set(models.spark.words.NAMES)
