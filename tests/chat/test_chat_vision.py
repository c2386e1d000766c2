"""Images in a conversation: their places in the prompt, and everything that refuses them."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image as Pillow
from small_pictures import (
    FENCELESS,
    GEMMA,
    QWEN,
    SEEING,
    asked,
    encoded,
    gemma,
    png_announcing,
    prompt_of,
    seeing_chat,
    seeing_tokenizer,
    solid,
)
from small_tokenizers import CHATML, FULL, KINDS, wrapped
from transformers import AutoTokenizer, Gemma4Config, Qwen3_5Config
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from surefoot.chat import Chat, ImageLimits, load_chat
from surefoot.chat.request import ChatInput, Image, Message, Role, TextInput, TokensInput
from surefoot.errors import RequestError, TooLarge

RED, BLUE, WIDE = solid("red"), solid("blue"), solid("green", (200, 50))  # 4, 4 and 6 tokens
SPARK = Path(__file__).parents[2] / "src" / "surefoot" / "engine" / "hf" / "spark"


def shown(tokenizer, prompt):
    """Return a prompt as text in which a run of placeholders is its length."""
    text = tokenizer.decode(prompt.tokens(), skip_special_tokens=False)
    return re.sub(r"(<\|image_pad\|>)+", lambda run: f"[{len(run[0]) // 13}]", text)


def refused(chat, request, media=None):
    with pytest.raises(RequestError) as caught:
        chat.prompt(request, list(chat.media(request)) if media is None else media)
    return caught.value


# --- places --------------------------------------------------------------------------------------


def test_each_placeholder_becomes_as_long_as_its_image():
    chat, tokenizer = seeing_chat()
    request = asked(["see ", RED, " and ", WIDE], "no image", [BLUE])
    media = list(chat.media(request))
    assert [one.tokens for one in media] == [4, 6, 4]
    prompt = chat.prompt(request, media)
    fence = "<|vision_start|>[{}]<|vision_end|>".format
    assert shown(tokenizer, prompt) == (
        f"<|im_start|>user\nsee {fence(4)} and {fence(6)}<|im_end|>\n"
        "<|im_start|>user\nno image<|im_end|>\n"
        f"<|im_start|>user\n{fence(4)}<|im_end|>\n<|im_start|>assistant\n"
    )
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    runs = [prompt.tokens(span.start, span.end) for span in prompt.media]
    assert runs == [[pad] * 4, [pad] * 6, [pad] * 4]
    assert prompt.tokens().count(pad) == 14
    assert [span.media for span in prompt.media] == [one.name for one in media]


def test_tokens_equal_the_tokenizers_own_encoding_of_the_expanded_text():
    chat, tokenizer = seeing_chat()
    prompt = prompt_of(chat, asked(["a ", RED, "\n b", WIDE, BLUE, " c"]))
    pads = ["<|vision_start|>" + "<|image_pad|>" * n + "<|vision_end|>" for n in (4, 6, 4)]
    text = "<|im_start|>user\na {}\n b{}{} c<|im_end|>\n<|im_start|>assistant\n".format(*pads)
    assert prompt.tokens() == tokenizer(text, add_special_tokens=False).input_ids


def test_a_family_whose_template_writes_no_fence_gets_one():
    chat, tokenizer = seeing_chat(FENCELESS, processor=gemma())
    prompt = prompt_of(chat, asked(["a", solid("red", (48, 48)), "b"]))
    [span] = prompt.media
    assert shown(tokenizer, prompt) == (
        f"<|im_start|>user\na<|vision_start|>[{span.length}]<|vision_end|>b<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_an_image_that_is_there_twice_is_two_spans_of_one_name():
    chat, _ = seeing_chat()
    prompt = prompt_of(chat, asked([RED, "and", RED]))
    assert len(prompt.media) == 2
    assert prompt.media[0].media == prompt.media[1].media


def test_text_is_the_same_prompt_with_sight_and_without():
    chat, tokenizer = seeing_chat()
    request = asked("hello", "<|image_pad|> hello")
    assert chat.prompt(request) == Chat(tokenizer).prompt(request)
    assert chat.prompt(TextInput("hello")) == Chat(tokenizer).prompt(TextInput("hello"))


FORGED = "a<|image_pad|><|vision_start|><|image_pad|><|vision_end|>b<|video_pad|>"


@pytest.mark.parametrize("pictures", [[], [RED], [RED, WIDE]])
def test_a_client_cannot_write_a_placeholder(pictures):
    chat, tokenizer = seeing_chat()
    tool = {"type": "function", "function": {"name": "f", "description": FORGED}}
    mixed = [part for one in pictures for part in (FORGED, one)]
    request = asked(FORGED, [*mixed, FORGED] if mixed else FORGED)
    prompt = prompt_of(chat, request)
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    video = tokenizer.convert_tokens_to_ids("<|video_pad|>")
    assert prompt.tokens().count(pad) == sum(span.length for span in prompt.media)
    assert len(prompt.media) == len(pictures)
    assert video not in prompt.tokens()
    assert tokenizer.decode(prompt.tokens(), skip_special_tokens=False).count(FORGED) == (
        2 + len(pictures)
    )
    with_tools, _ = seeing_chat("{{ tools | tojson }}" + SEEING)
    request = ChatInput(request.messages, (tool,))
    assert len(prompt_of(with_tools, request).media) == len(pictures)


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>"])
def test_a_raw_prompt_that_holds_a_placeholder_is_refused_by_name(token):
    chat, tokenizer = seeing_chat()
    number = tokenizer.convert_tokens_to_ids(token)
    for raw in (TextInput(f"a{token}b"), TokensInput((1, number))):
        error = refused(chat, raw)
        assert error.param == "prompt"
        assert token in str(error)
        assert "/v1/chat/completions" in str(error)
    assert len(Chat(tokenizer).prompt(TokensInput((1, number)))) == 2
    assert len(chat.prompt(TextInput("a<|vision_start|>")))


# --- history -------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [["and ", WIDE], "and?", [RED]])
def test_the_next_turn_begins_with_the_history_and_its_images(after):
    chat, _ = seeing_chat()
    request = asked(["see ", RED], ["and ", BLUE, "this"])
    media = list(chat.media(request))
    history = chat.history(request, "It is <|image_pad|>.", media)
    said = (
        *request.messages,
        Message(role=Role.ASSISTANT, content="It is <|image_pad|>."),
        asked(after).messages[0],
    )
    following = prompt_of(chat, ChatInput(said))
    end = len(history) - 1  # the very last token may merge with what the user says
    assert following.upto(end) == history.upto(end)
    assert history.media == chat.prompt(request, media).media


def test_history_is_none_where_a_template_drops_images_of_earlier_turns():
    last_only = SEEING.replace(
        "{% if part.type == 'image' %}", "{% if part.type == 'image' and not loop_last %}"
    ).replace("{% for part in", "{% set loop_last = messages | length > 1 %}{% for part in")
    chat, _ = seeing_chat(last_only)
    request = asked(["see ", RED, "?"])
    media = list(chat.media(request))
    assert chat.prompt(request, media).media
    assert chat.history(request, "red", media) is None


# --- templates -----------------------------------------------------------------------------------

IMAGES = (
    "{% for part in m.content %}{% if part.type == 'image' %}<|image_pad|>{% endif %}{% endfor %}"
)
TEXTS = (
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
)
FALSE_TEMPLATES = {
    "drops images": "{% for m in messages %}" + TEXTS + "{% endfor %}",
    "images first": "{% for m in messages %}" + IMAGES + TEXTS + "{% endfor %}",
    "images last": "{% for m in messages %}" + TEXTS + IMAGES + "{% endfor %}",
    "all images first": (
        "{% for m in messages %}" + IMAGES + "{% endfor %}"
        "{% for m in messages %}" + TEXTS + "{% endfor %}"
    ),
    "last message first": SEEING.replace("in messages", "in messages | reverse"),
    "parts backwards": SEEING.replace("in m.content", "in m.content | reverse"),
    "only the last image": SEEING.replace(
        "'image' %}", "'image' and loop.index == loop.length - 1 %}"
    ),
    "each image twice": SEEING.replace("<|image_pad|>", "<|image_pad|>" * 2),
    "an image of its own": "<|image_pad|>" + SEEING,
    "images of the user only, first": SEEING.replace(
        "{% for part", "{% if 0 %}{% endif %}" + IMAGES + "{% for part"
    ),
}


@pytest.mark.parametrize("name", FALSE_TEMPLATES)
def test_a_template_that_moves_or_drops_images_is_found_out(name):
    chat, _ = seeing_chat(FALSE_TEMPLATES[name])
    error = refused(chat, asked(["a", RED, "b", BLUE, "c"], ["d", WIDE, "e"]))
    assert re.fullmatch(r"messages\[[01]\]\.content\[[13]\]", error.param)
    assert f"'{error.param}'" in str(error)


def test_images_without_text_cannot_change_places_unseen():
    chat, _ = seeing_chat(FALSE_TEMPLATES["last message first"])
    assert refused(chat, asked([RED], [BLUE])).param == "messages[1].content[0]"


def test_the_image_that_is_missing_is_the_one_that_is_named():
    second_dropped = SEEING.replace("'image' %}", "'image' and loop.index0 != 3 %}")
    chat, _ = seeing_chat(second_dropped)
    request = asked(["a", RED, "b", BLUE, "c"])
    assert refused(chat, request).param == "messages[0].content[3]"


def test_a_template_that_puts_images_first_serves_what_is_sent_so():
    images_first = (
        "{% for m in messages %}" + IMAGES + TEXTS + "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    chat, tokenizer = seeing_chat(images_first)
    prompt = prompt_of(chat, asked([RED, WIDE, "what?"], [BLUE]))
    assert shown(tokenizer, prompt) == "[14]what?[4]<|im_start|>".replace("[14]", "[10]")
    assert [span.length for span in prompt.media] == [4, 6, 4]


def test_a_text_beside_an_image_that_is_dropped_is_found_out():
    chat, _ = seeing_chat("{% for m in messages %}" + IMAGES + "{% endfor %}")
    assert refused(chat, asked([RED, "what?"])).param == "messages[0].content[0]"


def test_a_template_that_knows_only_strings_refuses_images():
    chat, _ = seeing_chat(CHATML)
    assert refused(chat, asked(["a", RED])).param == "messages"


def test_a_template_that_writes_images_for_text_is_found_out():
    chat, _ = seeing_chat("<|image_pad|>" + CHATML)
    error = refused(chat, asked("no image"))
    assert "writes 1 images where 'messages' holds 0" in str(error)


def test_a_template_that_writes_other_images_in_long_conversations_is_found_out():
    """The canaries are short; what a template does of long texts alone, the count finds."""
    odd = SEEING + "{% if messages[0].content[0].text | length > 99 %}<|image_pad|>{% endif %}"
    chat, _ = seeing_chat(odd)
    assert len(prompt_of(chat, asked(["a", RED])).media) == 1
    assert "writes 2 images" in str(refused(chat, asked(["a" * 100, RED])))


# --- refusals ------------------------------------------------------------------------------------


def first_refusal(chat, request):
    made = []
    with pytest.raises(RequestError) as caught:
        made.extend(chat.media(request))
    return caught.value, made


def test_a_model_without_sight_names_the_first_image(make_chat):
    chat, _ = make_chat("byte_level", FULL)
    assert not chat.takes_images
    request = asked("text", ["a", RED, BLUE])
    error, _ = first_refusal(chat, request)
    assert error.param == "messages[1].content[1]"
    assert "image 1 (messages[1].content[1]): this model takes text only" in str(error)
    assert refused(chat, request, []).param == error.param
    assert list(chat.media(asked("text"))) == list(chat.media(TextInput("a"))) == []


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"not a picture", RequestError, "PNG, JPEG"),
        (solid("red", (5, 5))[:50], RequestError, "cut short"),
        (png_announcing(30_000, 30_000), TooLarge, "30,000 x 30,000 pixels"),
        (solid("red", (8, 6)), TooLarge, "8 x 6 pixels; at most 40"),
        (encoded(Pillow.new("L", (5, 5)), "TIFF") + bytes(9_999), TooLarge, "at most 9,000 are"),
    ],
    ids=["no picture", "cut short", "a bomb", "too many pixels", "too many bytes"],
)
def test_an_image_that_cannot_be_taken_is_named_by_number_and_place(data, error, said):
    chat, _ = seeing_chat(limits=ImageLimits(bytes=9_000, pixels=40))
    small = solid("red", (5, 5))
    caught, made = first_refusal(chat, asked([small], ["a", small, data]))
    assert (type(caught), len(made)) == (error, 2)
    assert caught.param == "messages[1].content[2]"
    assert "image 3 (messages[1].content[2])" in str(caught)
    assert said in str(caught)


def test_the_first_image_too_many_is_named_before_any_is_decoded():
    chat, _ = seeing_chat(limits=ImageLimits(images=2))
    assert len(list(chat.media(asked([RED], [BLUE])))) == 2
    error, made = first_refusal(chat, asked([RED], [b"no picture", RED]))
    assert (type(error), made) == (TooLarge, [])
    assert "image 3 (messages[1].content[1]) is one too many" in str(error)
    assert "2 images" in str(error)


def test_images_are_decoded_one_at_a_time():
    chat, _ = seeing_chat()
    items = chat.media(asked([RED, b"no picture"]))
    assert next(items).tokens == 4
    with pytest.raises(RequestError, match="image 2"):
        next(items)


def test_what_the_model_sees_of_a_request_is_bounded_in_bytes():
    chat, _ = seeing_chat()
    sizes = [len(item.data) for item in chat.media(asked([RED, WIDE, BLUE]))]
    exact, _ = seeing_chat(limits=ImageLimits(item_bytes=sum(sizes[:2])))
    assert len(list(exact.media(asked([RED, WIDE])))) == 2
    error, made = first_refusal(exact, asked([RED, WIDE, BLUE]))
    assert (type(error), len(made), error.param) == (TooLarge, 2, "messages[0].content[2]")
    assert f"{sum(sizes[:2]):,} bytes" in str(error)
    assert f"it has {sum(sizes):,}" in str(error)


def test_images_that_fill_the_context_are_refused_with_their_sizes():
    filled, _ = seeing_chat(context_tokens=10)
    assert "are 10, and the context is 10" in str(first_refusal(filled, asked([RED, WIDE]))[0])
    chat, _ = seeing_chat(context_tokens=11)
    assert len(list(chat.media(asked([RED, WIDE])))) == 2
    error, made = first_refusal(chat, asked([RED, WIDE, BLUE]))
    assert (len(made), error.code) == (2, "context_length_exceeded")
    assert error.param == "messages[0].content[2]"
    assert "64 x 64 pixels, is 4 tokens" in str(error)
    assert "are 14, and the context is 11" in str(error)
    unbounded, _ = seeing_chat(context_tokens=None)
    assert len(list(unbounded.media(asked([RED] * 3)))) == 3


def test_items_that_are_not_the_requests_are_a_bug():
    chat, _ = seeing_chat()
    request = asked([RED])
    for media in ([], list(chat.media(request)) * 2):
        with pytest.raises(AssertionError):
            chat.prompt(request, media)


def test_least_tokens_counts_the_text_beside_images_and_one_an_image():
    chat, _ = seeing_chat()
    text = "a" * 3000
    alone = chat.least_tokens(asked(text))
    assert alone > 10
    assert chat.least_tokens(asked([text, RED, BLUE])) == alone + 2
    request = asked(["a", RED, WIDE])
    assert chat.least_tokens(request) <= len(prompt_of(chat, request))


# --- loading -------------------------------------------------------------------------------------


def saved(folder, *, config, processor=None, tokenizer=None):
    tokenizer = tokenizer or seeing_tokenizer()
    tokenizer.save_pretrained(folder)
    written = config(tokenizer.convert_tokens_to_ids)
    (folder / "config.json").write_text(json.dumps(written))
    if processor is not None:
        processor.save_pretrained(folder)
    return load_chat(str(folder))


def qwen_config(one, **changes):
    config = Qwen3_5Config().to_dict()
    config |= {"image_token_id": one("<|image_pad|>"), "video_token_id": one("<|video_pad|>")}
    return config | changes


def test_a_vision_model_loads_with_its_processor_and_its_placeholder(tmp_path):
    chat = saved(tmp_path, config=qwen_config, processor=Qwen2VLImageProcessorPil(**QWEN))
    assert chat.takes_images
    request = asked(["a", RED, "b"])
    assert prompt_of(chat, request) == prompt_of(seeing_chat()[0], request)
    for token in ("<|image_pad|>", "<|video_pad|>"):
        assert refused(chat, TextInput(token)).param == "prompt"


def test_a_gemma_model_gets_its_fence_from_its_configuration(tmp_path):
    def config(one):
        ids = {"boi_token_id": one("<|vision_start|>"), "eoi_token_id": one("<|vision_end|>")}
        ids |= {"image_token_id": one("<|image_pad|>"), "video_token_id": one("<|video_pad|>")}
        return Gemma4Config(vision_config={}).to_dict() | ids | {"audio_token_id": 3}

    chat = saved(
        tmp_path,
        config=config,
        processor=Gemma4ImageProcessorPil(**GEMMA),
        tokenizer=seeing_tokenizer(FENCELESS),
    )
    request = asked(["a", RED, "b"])
    known, _ = seeing_chat(FENCELESS, processor=gemma())
    assert prompt_of(chat, request) == prompt_of(known, request)


def without_sight(one):
    return {"model_type": "qwen3_5_text"}


@pytest.mark.parametrize("config", [without_sight, lambda one: {"model_type": "of next year"}])
def test_a_model_of_text_takes_text_only_whatever_lies_beside_it(tmp_path, config):
    chat = saved(tmp_path, config=config, processor=Qwen2VLImageProcessorPil(**QWEN))
    error, _ = first_refusal(chat, asked([RED]))
    assert str(error).endswith("this model takes text only")


def test_a_model_whose_tower_does_not_run_takes_text_only(tmp_path):
    saved(tmp_path, config=qwen_config, processor=Qwen2VLImageProcessorPil(**QWEN))
    assert load_chat(str(tmp_path), sees=True).takes_images
    assert not load_chat(str(tmp_path), sees=False).takes_images


REASONS = {
    "no processor": (qwen_config, None, "no image processor could be loaded"),
    "unknown processor": (qwen_config, SiglipImageProcessorPil(), "SiglipImageProcessorPil is not"),
    "no placeholder": (
        lambda one: qwen_config(one, image_token_id=99_999),
        Qwen2VLImageProcessorPil(**QWEN),
        "no special token that stands for an image",
    ),
    "a placeholder that is text": (
        lambda one: qwen_config(one, image_token_id=one("<think>")),
        Qwen2VLImageProcessorPil(**QWEN),
        "no special token that stands for an image",
    ),
}


@pytest.mark.parametrize("why", REASONS)
def test_a_vision_model_that_lacks_a_piece_takes_text_and_says_why(tmp_path, why):
    config, processor, said = REASONS[why]
    chat = saved(tmp_path, config=config, processor=processor)
    assert not chat.takes_images
    error, _ = first_refusal(chat, asked(["a", RED]))
    assert said in str(error)
    assert len(chat.prompt(asked("text")))


def test_limits_given_at_loading_hold(tmp_path):
    saved(tmp_path, config=qwen_config, processor=Qwen2VLImageProcessorPil(**QWEN))
    chat = load_chat(str(tmp_path), limits=ImageLimits(images=1))
    assert isinstance(first_refusal(chat, asked([RED, RED]))[0], TooLarge)


@pytest.fixture(scope="module")
def spark():
    return load_chat(str(SPARK)), AutoTokenizer.from_pretrained(SPARK)


def test_sparks_prompt_is_what_its_tokenizer_makes_of_the_expanded_template(spark):
    chat, tokenizer = spark
    request = asked(["One word: what color?", RED], ["And this? ", WIDE])
    wire = [
        {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]}
        for text in ("One word: what color?", "And this? ")
    ]
    text = tokenizer.apply_chat_template(wire, add_generation_prompt=True, tokenize=False)
    first, second, third = text.split("<|image_pad|>")
    media = list(chat.media(request))
    pads = ["<|image_pad|>" * item.tokens for item in media]
    expanded = first + pads[0] + second + pads[1] + third
    prompt = chat.prompt(request, media)
    assert prompt.tokens() == tokenizer(expanded, add_special_tokens=False).input_ids
    assert [span.length for span in prompt.media] == [item.tokens for item in media]
    assert media[0].tokens != media[1].tokens


def test_an_image_is_no_text_to_a_tokenizer_that_knows_no_template():
    chat = Chat(wrapped(KINDS["byte_level"](), None))
    request = ChatInput((Message(role=Role.USER, content=(Image(RED, "here"),)),))
    assert first_refusal(chat, request)[0].param == "here"
