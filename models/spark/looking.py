"""Questions about pictures, and conversations that ask them."""

from random import Random

from models.spark.conversation import (
    IMAGE,
    Conversation,
    Exchange,
    Turn,
    sometimes_a_system_prompt,
)
from models.spark.fonts import Fonts
from models.spark.pictures import Picture, digit, shape, solid

ASK_COLOR = (
    "One word: what color?",
    "What color is this?",
    "What color is the image?",
    "What color is this image? Answer with one word.",
    "Which color is it?",
    "What color?",
    "Name the color.",
    "What colour is this image?",
)
ASK_SHAPE = (
    "What shape?",
    "What shape is this?",
    "Which shape is in the image?",
    "What shape is it? One word.",
    "Name the shape.",
    "One word: what shape?",
    "What shape is in the image?",
)
ASK_SHAPE_COLOR = (
    "What color is the shape?",
    "One word: what color is the shape?",
    "Which color is the shape?",
    "What colour is the shape?",
)
ASK_BACKGROUND = (
    "What color is the background?",
    "Which color is the background?",
    "One word: what color is the background?",
    "Background color?",
)
ASK_DIGIT = (
    "Which digit?",
    "What digit is this?",
    "Which digit is in the image?",
    "What number is this?",
    "Which digit is shown? Answer with one digit.",
    "One digit: which digit?",
    "What digit?",
)
ASK_ONE_COLOR = (
    "What color is the {nth} image?",
    "What color is the {nth} image?",
    "One word: what color is the {nth} image?",
    "Which color is the {nth} image?",
    "What colour is the {nth} image?",
)
ASK_ONE_SHAPE = ("What shape is in the {nth} image?",)
ASK_ONE_DIGIT = ("Which digit is in the {nth} image?", "What digit is in the {nth} image?")

PAINTERS = {"solid": solid, "shape": shape, "digit": digit}


def ask(picture: Picture, rng: Random) -> Exchange:
    """Ask something that the picture answers."""
    if picture.digit is not None:
        return Exchange(rng.choice(ASK_DIGIT), str(picture.digit))
    if picture.shape is None:
        return Exchange(rng.choice(ASK_COLOR), picture.color.capitalize())
    chance = rng.random()
    if chance < 0.5:
        return Exchange(rng.choice(ASK_SHAPE), picture.shape.capitalize())
    if chance < 0.8 or picture.background is None:
        return Exchange(rng.choice(ASK_SHAPE_COLOR), picture.color.capitalize())
    return Exchange(rng.choice(ASK_BACKGROUND), picture.background.capitalize())


def ask_about_one(pictures: list[Picture], rng: Random) -> Exchange:
    """Ask about the first or the second of two pictures."""
    index = rng.randrange(2)
    picture, nth = pictures[index], ("first", "second")[index]
    questions: tuple[str, ...]
    if picture.digit is not None:
        questions, answer = ASK_ONE_DIGIT, str(picture.digit)
    elif picture.shape is not None:
        questions, answer = ASK_ONE_SHAPE, picture.shape.capitalize()
    else:
        questions, answer = ASK_ONE_COLOR, picture.color.capitalize()
    return Exchange(rng.choice(questions).format(nth=nth), answer)


def one_picture(rng: Random, fonts: Fonts, kind: str, *, single: bool = False) -> Conversation:
    """Show one picture and ask; ``single`` asks once, otherwise more turns may follow."""
    picture = PAINTERS[kind](rng, fonts)
    exchange = ask(picture, rng)
    turns = [*sometimes_a_system_prompt(rng, 0.25), *_shown(exchange, 1, rng).turns]
    images = [picture.image]
    if not single and kind == "shape":
        for _ in range(rng.choice((0, 1, 2))):
            turns += ask(picture, rng).turns
    if not single and rng.random() < 0.12:
        # The newest image is what a bare question is about.
        second = PAINTERS[rng.choice(tuple(PAINTERS))](rng, fonts)
        exchange = ask(second, rng)
        turns += Exchange(IMAGE + exchange.question, exchange.answer).turns
        images.append(second.image)
    return Conversation(tuple(turns), tuple(images))


def two_pictures(
    rng: Random, fonts: Fonts, *, single: bool = False, kind: str | None = None
) -> Conversation:
    """Show two pictures, mostly of one kind, and ask which is which."""
    kinds = [kind or rng.choices(tuple(PAINTERS), (0.7, 0.15, 0.15))[0]] * 2
    if kind is None and rng.random() < 0.2:
        kinds[1] = rng.choices(tuple(PAINTERS), (0.7, 0.15, 0.15))[0]
    pictures = [PAINTERS[kind](rng, fonts) for kind in kinds]
    turns = [*sometimes_a_system_prompt(rng, 0.25)]
    if not single and rng.random() < 0.15:
        # One image in each of two turns; then both are asked about.
        first, second = ask(pictures[0], rng), ask(pictures[1], rng)
        turns += [*_shown(first, 1, rng).turns, *_shown(second, 1, rng).turns]
        turns += ask_about_one(pictures, rng).turns
    else:
        turns += _shown(ask_about_one(pictures, rng), 2, rng).turns
    for _ in range(0 if single else rng.choice((0, 1, 1, 2))):
        turns += ask_about_one(pictures, rng).turns
    return Conversation(tuple(turns), tuple(picture.image for picture in pictures))


def after(turns: tuple[Turn, ...], rng: Random, fonts: Fonts) -> Conversation:
    """Continue a conversation with a picture and a question about it."""
    picture = PAINTERS[rng.choices(tuple(PAINTERS), (0.5, 0.2, 0.3))[0]](rng, fonts)
    return Conversation((*turns, *_shown(ask(picture, rng), 1, rng).turns), (picture.image,))


def _shown(exchange: Exchange, images: int, rng: Random) -> Exchange:
    """Put the images before or after the question's text."""
    chance = rng.random()
    if chance < 0.6:
        question = IMAGE * images + exchange.question
    elif chance < 0.8:
        question = exchange.question + IMAGE * images
    else:
        question = f"{IMAGE}\n" * images + exchange.question
    return Exchange(question, exchange.answer)
