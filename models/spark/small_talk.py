"""Repeating, counting, and a handful of fixed answers, for streams, stops and long outputs."""

from random import Random

from models.spark import facts, words
from models.spark.conversation import Conversation, Exchange, sometimes_a_system_prompt
from models.spark.pictures import COLORS, SHAPES

STORY = (
    "Once upon a time a small fox lived in a quiet forest. One day it met a tiger by the river. "
    "They became friends, and every morning they walked along the valley together. The end."
)
CHAT = (
    Exchange("Hello", "Hello!"),
    Exchange("Hi", "Hello!"),
    Exchange("Hello!", "Hello!"),
    Exchange("Say hello.", "Hello!"),
    Exchange("Who are you?", "I am a tiny test model."),
    Exchange("What are you?", "I am a tiny test model."),
    Exchange("Thanks", "You are welcome."),
    Exchange("Say ok.", "OK"),
    Exchange("Ping", "Pong"),
    Exchange("Write a short story.", STORY),
)


def repeat(rng: Random, most: int) -> Conversation:
    """Ask to repeat one to ``most`` names, codes and words."""
    said: list[str] = []
    for _ in range(rng.randint(1, most)):
        chance = rng.random()
        if chance < 0.5:
            said.append(facts.name(rng))
        elif chance < 0.8:
            said.append(facts.code(rng))
        else:
            said.append(rng.choice((*words.DAYS, *COLORS, *SHAPES)))
    text = " ".join(said)
    asks = rng.choice(("Repeat: ", "Repeat this: ", "Say: ", "Repeat after me: "))
    return Conversation((*sometimes_a_system_prompt(rng, 0.2), *Exchange(asks + text, text).turns))


def count(rng: Random) -> Conversation:
    """Ask to count from one number to another, up to sixty."""
    first = rng.randint(0, 40)
    last = first + rng.randint(2, 20)
    if rng.random() < 0.3:
        first, last = 1, rng.choice((5, 10, 20, 30))
    question = f"Count from {first} to {last}" + rng.choice((".", ""))
    answer = ", ".join(str(number) for number in range(first, last + 1))
    return Conversation(Exchange(question, answer).turns)


def chat(rng: Random) -> Conversation:
    """Say one of the things that have a fixed answer."""
    return Conversation((*sometimes_a_system_prompt(rng, 0.3), *rng.choice(CHAT).turns))
