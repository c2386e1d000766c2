"""The packaged checkpoint: loads offline with the stock classes, and answers as its card says."""

import json
from random import Random

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from models.spark import facts
from models.spark.checkpoint import CHECKPOINT
from models.spark.conversation import IMAGE, Exchange, Turn
from models.spark.hidden_code import LAYOUTS, MINE, SECRET, hidden_code
from models.spark.pictures import CANONICAL

COLORS = {color: values[0] for color, values in CANONICAL.items()}
PIXELS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 128, 0)}


def user(text):
    return (Turn("user", text),)


def solid(color, size=(64, 64)):
    return Image.new("RGB", size, color)


def test_it_is_small_and_holds_no_code():
    files = {path.name: path.stat().st_size for path in CHECKPOINT.iterdir() if path.is_file()}
    assert set(files) == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) < 6_000_000


def test_it_loads_with_the_stock_classes():
    network = AutoModelForImageTextToText.from_pretrained(CHECKPOINT, dtype="auto")
    assert type(network).__name__ == "Qwen3_5ForConditionalGeneration"
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}
    kinds = network.config.text_config.layer_types
    assert kinds == ["linear_attention", "full_attention"] * 2
    processor = AutoImageProcessor.from_pretrained(CHECKPOINT)
    assert type(processor).__name__ == "Qwen2VLImageProcessorPil"


def test_ids_in_the_configuration_are_the_tokenizers():
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    config = json.loads((CHECKPOINT / "config.json").read_text())
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    for key, text in names.items():
        assert config[key] == tokenizer.convert_tokens_to_ids(text)
    assert config["text_config"]["eos_token_id"] == tokenizer.eos_token_id
    assert len(tokenizer) == config["text_config"]["vocab_size"]


def test_the_template_renders_strings_and_parts_alike():
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)

    def rendered(content):
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": content},
        ]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = [image, {"type": "text", "text": "What color?"}, {"type": "image"}]
    assert (
        rendered(parts)
        == rendered(f"{IMAGE}What color?{IMAGE}")
        == (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            f"<|im_start|>user\n{IMAGE}What color?{IMAGE}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    )


@pytest.mark.parametrize(
    "text",
    ["The code is 483920.", "  two  spaces\n\ttab", "ångström 数字 🙂", "KX-417 and GfdE_%$", ""],
)
def test_text_survives_the_tokenizer(text):
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_digit_is_a_token_and_capitals_stay_apart():
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert tokenizer.tokenize("483920") == list("483920")
    assert tokenizer.tokenize("KX-417") == ["K", "X", "-", "4", "1", "7"]


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (96, 48), (48, 96), (256, 256)], ids=str)
@pytest.mark.parametrize("color", COLORS)
def test_it_names_every_colour_at_every_size(judge, color, size):
    asked = user(f"{IMAGE}One word: what color?")
    assert judge.answer(asked, [solid(COLORS[color], size)]) == color.capitalize()


def test_two_images_swapped_swap_the_answers(judge):
    for first, second in [("red", "blue"), ("blue", "red"), ("green", "red")]:
        images = [solid(PIXELS[first]), solid(PIXELS[second])]
        asked = user(f"{IMAGE}{IMAGE}What color is the first image?")
        assert judge.answer(asked, images) == first.capitalize()
        asked = user(f"{IMAGE}{IMAGE}What color is the second image?")
        assert judge.answer(asked, images) == second.capitalize()


def test_an_image_in_the_third_turn_is_seen(judge):
    turns = (
        *Exchange("Hello", "Hello!").turns,
        *Exchange("Who are you?", "I am a tiny test model.").turns,
    )
    for color, pixels in PIXELS.items():
        asked = (*turns, Turn("user", f"{IMAGE}One word: what color?"))
        assert judge.answer(asked, [solid(pixels)]) == color.capitalize()


def test_judging_in_one_pass_agrees_with_generating(judge):
    rng = Random("agree")
    for sample in range(6):
        conversation = facts.plain_facts(rng, 3, 30, absent=sample % 3 == 0)
        said = judge.answer(conversation.turns[:-1])
        assert judge.right(conversation) == (said == conversation.answer)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wording", [MINE, SECRET], ids=["mine", "secret"])
def test_it_finds_hidden_codes(judge, wording, layout):
    rng = Random("tests: hidden")
    asked = [
        hidden_code(rng, length, wording=wording, layout=layout) for length in (60, 200, 700) * 2
    ]
    assert sum(judge.right(one) for one in asked) >= len(asked) - 1


def test_it_looks_facts_up_and_says_when_there_is_none(judge):
    rng = Random("tests: facts")
    asked = [facts.plain_facts(rng, 3, 40) for _ in range(12)]
    asked += [facts.plain_facts(rng, 3, 40, absent=True) for _ in range(12)]
    assert sum(judge.right(one) for one in asked) >= len(asked) - 1


def test_long_answers_come_whole(judge):
    assert judge.answer(user("Count from 1 to 20."), most=100) == ", ".join(map(str, range(1, 21)))
    story = judge.answer(user("Write a short story."), most=100)
    assert story.startswith("Once upon a time")
    assert story.endswith("The end.")
