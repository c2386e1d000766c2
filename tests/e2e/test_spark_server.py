"""Pictures through the whole thing: a real process, the real ``openai`` client, ``spark``, a disk.

References come from one fresh process without a store, under ``bypass``; every other answer must
equal them in text, log-probabilities and state, bit for bit (I5), and say what the picture shows.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import openai
import pytest

from surefoot.bench.process import ServerProcess
from surefoot.pictures import COLOURS, photo, raw, said, shown, solid, speckled, user

MODEL = "spark"
BLOCK = 16
PATIENT = ("--restore-floor-s", "60")  # a disk that is slow is no miss here
ONE_WORD = "One word: what color?"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
SEQUENCE = ("red", "blue", "green", "red")


class Place:
    """One server process and a client of it, whose connections end with it."""

    def __init__(self, process, client):
        self.server = process
        self.openai = client

    @classmethod
    @contextmanager
    def started(cls, log, flags):
        with (
            ServerProcess(MODEL, log, [*flags, *PATIENT]) as process,
            openai.OpenAI(base_url=f"{process.client.url}/v1", api_key="unused") as client,
        ):
            yield cls(process, client)

    def ask(self, messages, mode="use", **fields):
        body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 12}
        body |= {"logprobs": True, "top_logprobs": 3} | fields
        headers = {"x-surefoot-cache": mode}
        return self.openai.chat.completions.create(**body, extra_headers=headers)

    def counter(self, name):
        return self.server.client.wait("status", lambda _: True, timeout_s=5)["counters"][name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def reference(folder):
    """A process that only ever computes cold; answers are kept by their messages."""
    with Place.started(folder / "reference.log", ["--store", "off"]) as place:
        kept = {}

        def cold(messages):
            key = repr(messages)
            if key not in kept:
                kept[key] = place.ask(messages, "bypass")
            return kept[key]

        yield cold


@pytest.fixture(scope="module")
def place(folder):
    flags = ["--store", str(folder / "store")]
    with Place.started(folder / "server.log", flags) as here:
        yield here


def about(picture, question=ONE_WORD):
    return [SYSTEM, user(shown(picture), said(question))]


def colour(name, width=64, height=64):
    return solid(COLOURS[name], width, height)


def text(response):
    return response.choices[0].message.content


def receipt(response):
    return response.model_extra["surefoot"]


def bits(response):
    tokens = [one.model_dump() for one in response.choices[0].logprobs.content]
    return text(response), tokens, receipt(response)["state_digest"]


def hits(response):
    return [one["feature_hit"] for one in receipt(response)["media"]]


def test_four_pictures_under_one_prompt_get_their_own_answers_cold_and_warm(place, reference):
    for round_ in range(2):
        for number, name in enumerate(SEQUENCE):
            answer = place.ask(about(colour(name)))
            assert text(answer) == name.capitalize()
            assert bits(answer) == bits(reference(about(colour(name))))
            again = round_ == 1 or number == 3
            assert hits(answer) == [again]
            # Before the picture's end there is no whole block; after it there is one.
            assert (receipt(answer)["restored_tokens"] > 0) == again
    assert hits(reference(about(colour("red")))) == [False]


def test_the_same_bytes_in_another_shape_are_another_picture(place, reference):
    pixels = bytes((value * 7) % 256 for value in range(72))
    answers = [place.ask(about(raw(pixels, *size))) for size in ((6, 4), (4, 6))]
    names = {receipt(one)["media"][0]["name"] for one in answers}
    assert len(names) == 2
    assert [receipt(one)["media"][0]["tokens"] for one in answers] == [6, 6]
    for one, size in zip(answers, ((6, 4), (4, 6)), strict=True):
        assert hits(one) == [False]
        assert bits(one) == bits(reference(about(raw(pixels, *size))))


def test_a_picture_in_the_third_turn_after_text(place, reference):
    lead = [
        SYSTEM,
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Say ok."},
        {"role": "assistant", "content": "OK"},
    ]
    for name in SEQUENCE:
        asked = [*lead, user(shown(colour(name)), said(ONE_WORD))]
        answer = place.ask(asked)
        assert text(answer) == name.capitalize()
        assert bits(answer) == bits(reference(asked))
    assert receipt(answer)["restored_tokens"] >= receipt(answer)["prompt_tokens"] - 2 * BLOCK


def test_a_conversation_about_a_picture_is_warm_from_its_second_turn(place, reference):
    messages = about(photo(), "What shape is this?")
    for number, question in enumerate(
        ("What color is the shape?", "What color is the background?", "What shape?")
    ):
        answer = place.ask(messages)
        assert bits(answer) == bits(reference(messages))
        if number:
            assert hits(answer) == [True]
            assert receipt(answer)["restored_tokens"] > 0
        messages = [
            *messages,
            {"role": "assistant", "content": text(answer)},
            {"role": "user", "content": question},
        ]


def test_under_a_long_prompt_only_what_is_new_is_computed(place, reference):
    system = "The picture comes first and the question comes after it. Answer in one word. " * 24
    lead = [{"role": "system", "content": system}]
    # Shades of their own: no other test has shown these pictures.
    red, blue = ([*lead, *about(solid(shade))[1:]] for shade in ((250, 4, 6), (4, 6, 250)))
    place.ask(red)
    again = place.ask(red)
    prompt = receipt(again)["prompt_tokens"]
    assert prompt > 400
    assert receipt(again)["restored_tokens"] >= 0.9 * prompt
    assert hits(again) == [True]
    other = place.ask(blue)
    # The text before the picture, and nothing of what comes after.
    assert prompt - 4 * BLOCK < receipt(other)["restored_tokens"] < prompt - BLOCK
    assert hits(other) == [False]
    for answer, asked in ((again, red), (other, blue)):
        assert bits(answer) == bits(reference(asked))


def test_two_pictures_and_their_order(place, reference):
    for first, second in itertools.permutations(("red", "green", "blue"), 2):
        parts = [shown(colour(first)), shown(colour(second))]
        for ordinal, wanted in (("first", first), ("second", second)):
            asked = [user(*parts, said(f"What color is the {ordinal} image?"))]
            answer = place.ask(asked)
            assert text(answer) == wanted.capitalize()
            assert bits(answer) == bits(reference(asked))


def test_two_clients_at_once_never_see_each_others_picture(place, reference):
    numbers = range(24)
    names = list(COLOURS)

    def look(number):
        asked = about(speckled(COLOURS[names[number % 8]], 900 + number // 8))
        return asked, place.ask(asked)

    with ThreadPoolExecutor(8) as pool:
        for asked, answer in pool.map(look, (*numbers, *numbers)):
            assert bits(answer) == bits(reference(asked))


def test_eight_requests_for_one_new_picture_run_the_tower_once(place, reference):
    picture = speckled(COLOURS["orange"], 4242)
    before = place.counter("features_committed")
    questions = [f"One word: what color? {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: place.ask(about(picture, one)), questions))
    assert place.counter("features_committed") == before + 1
    assert sorted(hit for answer in answers for hit in hits(answer)) == [False] + [True] * 7
    for question, answer in zip(questions, answers, strict=True):
        assert bits(answer) == bits(reference(about(picture, question)))


def test_the_client_s_words_for_a_picture_are_never_its_identity(place, reference):
    red, blue = shown(colour("red")), shown(colour("blue"))
    for part in (red, blue):
        part["image_url"]["url"] = part["image_url"]["url"].replace("image/png", "image/jpeg")
    for part, name in ((red, "Red"), (blue, "Blue"), (red, "Red")):
        assert text(place.ask([SYSTEM, user(part, said(ONE_WORD))])) == name


@pytest.mark.parametrize("data", ["aGVsbG8=", ""])
def test_what_is_no_picture_is_refused_by_its_place(place, data):
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    with pytest.raises(openai.BadRequestError) as refused:
        place.ask([SYSTEM, user(shown(colour("red")), part, said(ONE_WORD))])
    assert refused.value.param == "messages[1].content[1]"
    assert "image 2" in str(refused.value)


def facts(*codes):
    names = ("atlas", "beacon", "comet", "delta", "ember", "falcon", "glacier", "harbor", "indigo")
    lines = [f"{name} task {code} due monday" for name, code in zip(names, codes, strict=True)]
    return "\n".join(lines)


CODES = ("KX-417", "QT-903", "ZB-221", "LM-550", "PW-118", "RA-734", "TD-902", "VE-361")


def test_facts_that_differ_deep_in_a_shared_prefix_never_mix(folder, reference):
    lasts = ("HG-645", "NC-872")
    talks = [
        [{"role": "user", "content": facts(*CODES, last) + "\n\nWhich task does indigo have?"}]
        for last in lasts
    ]
    orders = [(0, 1, 0), (1, 0, 1), (0, 0, 1), (1, 1, 0)]
    flags = ["--store", str(folder / "facts")]
    for leg, more in (("ram", []), ("ssd", ["--ram-bytes", "0"])):
        with Place.started(folder / f"facts-{leg}.log", [*flags, *more]) as here:
            for number, order in enumerate(orders):
                for which in order:
                    # A salt of its own gives every order an empty store to begin with.
                    salt = {"cache_salt": f"order-{number}"}
                    answer = here.ask(talks[which], extra_body=salt)
                    assert text(answer) == lasts[which]
                    assert bits(answer) == bits(reference(talks[which]))
                restored = receipt(answer)["restored_tokens"]
                assert restored >= receipt(answer)["prompt_tokens"] - 4 * BLOCK
                assert receipt(answer)["sources"].keys() == {leg}
            here.server.client.wait_written()


def many(count):
    names = list(COLOURS)
    return [(names[n % 8], about(speckled(COLOURS[names[n % 8]], n))) for n in range(count)]


@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.long)])
def test_hundreds_of_pictures_under_one_prompt_each_get_their_own_answer(folder, reference, count):
    asked = many(count)
    flags = ["--store", str(folder / f"many-{count}")]
    with Place.started(folder / "many.log", flags) as here:
        right = 0
        for name, messages in asked:
            answer = here.ask(messages)
            assert hits(answer) == [False]
            assert bits(answer) == bits(reference(messages))
            right += text(answer) == name.capitalize()
        assert right >= 0.97 * count
        for name in SEQUENCE:
            assert text(here.ask(about(colour(name)))) == name.capitalize()
        here.server.client.wait_written()
    with Place.started(folder / "many-again.log", [*flags, "--ram-bytes", "0"]) as here:
        sequence = [about(colour(name)) for name in SEQUENCE]
        for messages in [*sequence, *(messages for _, messages in asked[::7])]:
            answer = here.ask(messages)
            assert hits(answer) == [True]
            assert receipt(answer)["sources"].keys() == {"ssd"}
            assert bits(answer) == bits(reference(messages))
