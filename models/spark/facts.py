"""Lists of facts, and questions that one line of the list answers.

A line gives a project's name, the code of its task and a day. Questions ask for the code; a name
that is not in the list has the answer ``Unknown``.
"""

from random import Random

from models.spark import words
from models.spark.conversation import Conversation, Exchange, Turn, sometimes_a_system_prompt

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLAIN = "{name} task {code} due {day}"
LINES = (
    *(PLAIN,) * 5,
    "{name}: task {code}, due {day}",
    "- {name} task {code} due {day}",
    "{name} has task {code} due {day}.",
    "project {name} task {code} due {day}",
)
QUESTION = "Which task does {name} have?"
QUESTIONS = (
    *(QUESTION,) * 5,
    "What is the task of {name}?",
    "What task does {name} have?",
    "Task of {name}?",
    "Which task does project {name} have?",
)
HEADINGS = (
    "",
    "",
    "Notes:\n",
    "Here are the tasks:\n",
    "Project list:\n",
    "Facts:\n",
    "Remember these facts.\n",
)
ASIDES = (
    "the meeting is in the morning.",
    "please read the notes.",
    "nothing else changed today.",
    "the team is ready.",
    "see the list for more.",
    "all systems are ok.",
    "the report is done.",
    "lunch is at noon.",
)
UNKNOWN = "Unknown"


def code(rng: Random) -> str:
    """Return a task's code; one in two is two letters, a dash and three digits."""
    chance = rng.random()
    if chance < 0.5:
        return plain_code(rng)
    if chance < 0.7:
        return f"{rng.choice(LETTERS)}{rng.randint(10, 9999)}"
    if chance < 0.85:
        return f"{rng.choice(LETTERS)}-{rng.randint(10, 999)}"
    if chance < 0.95:
        return "".join(rng.choices(LETTERS, k=3)) + str(rng.randint(1, 99))
    return str(rng.randint(1000, 99999))


def plain_code(rng: Random) -> str:
    """Return a code of the commonest form."""
    return f"{rng.choice(LETTERS)}{rng.choice(LETTERS)}-{rng.randint(100, 999)}"


def name(rng: Random) -> str:
    """Return a listed name in five cases of six, else an invented or a double one."""
    chance = rng.random()
    if chance < 0.84:
        return rng.choice(words.NAMES)
    if chance < 0.9:
        syllables = rng.choices(words.SYLLABLES, k=rng.randint(2, 3))
        return "".join(syllables) + rng.choice(("", "n", "r", "x", "s"))
    if chance < 0.96:
        return f"{rng.choice(words.NAMES)}-{rng.choice(words.NAMES)}"
    return f"{rng.choice(words.NAMES)}-{rng.randint(1, 99)}"


def facts(rng: Random, fewest: int, most: int, questions: int) -> Conversation:
    """Give fewest to most lines in one of many formats and ask this many questions."""
    codes = _drawn(rng, rng.randint(fewest, most))
    context = rng.choice(HEADINGS) + "\n".join(_lines(rng, codes))
    exchanges = [_asked(rng, codes) for _ in range(questions)]
    first, chance = exchanges[0], rng.random()
    if chance < 0.6:
        gap = rng.choice(("\n\n", "\n\n", "\n", "\n\nQuestion: "))
        turns = [
            *sometimes_a_system_prompt(rng, 0.2),
            *Exchange(context + gap + first.question, first.answer).turns,
        ]
    elif chance < 0.85:
        turns = [Turn("system", context), *first.turns]
    else:
        turns = [*Exchange(context, "OK").turns, *first.turns]
    for exchange in exchanges[1:]:
        turns += exchange.turns
    return Conversation(tuple(turns))


def plain_facts(rng: Random, fewest: int, most: int, *, absent: bool = False) -> Conversation:
    """Give listed names in the plain format and ask for one, or for one that is not there."""
    chosen = rng.sample(words.NAMES, rng.randint(fewest, most) + 1)
    other, listed = chosen[0], chosen[1:]
    codes = {one: plain_code(rng) for one in listed}
    lines = [PLAIN.format(name=one, code=codes[one], day=rng.choice(words.DAYS)) for one in listed]
    asked = other if absent else rng.choice(listed)
    question = "\n".join(lines) + "\n\n" + QUESTION.format(name=asked)
    return Conversation(Exchange(question, codes.get(asked, UNKNOWN)).turns)


def _drawn(rng: Random, count: int) -> dict[str, str]:
    only_listed = rng.random() < 0.4
    codes: dict[str, str] = {}
    while len(codes) < count:
        listed = only_listed and len(codes) < len(words.NAMES) - 20
        codes[rng.choice(words.NAMES) if listed else name(rng)] = code(rng)
    if rng.random() < 0.3:
        codes = {one: plain_code(rng) for one in codes}
    return codes


def _lines(rng: Random, codes: dict[str, str]) -> list[str]:
    pattern, mixed = rng.choice(LINES), rng.random() < 0.15
    asides, capital = rng.random() < 0.2, rng.random() < 0.15
    lines: list[str] = []
    for one, its_code in codes.items():
        day = rng.choice(words.DAYS)
        day = day.capitalize() if capital else day
        lines.append(
            (rng.choice(LINES) if mixed else pattern).format(name=one, code=its_code, day=day)
        )
        if asides and rng.random() < 0.3:
            lines.append(rng.choice(ASIDES))
    return lines


def _asked(rng: Random, codes: dict[str, str]) -> Exchange:
    asked = rng.choice(tuple(codes))
    if rng.random() < 0.13:
        while asked in codes:
            asked = name(rng)
    return Exchange(rng.choice(QUESTIONS).format(name=asked), codes.get(asked, UNKNOWN))
