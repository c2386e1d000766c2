"""The tokenizer and the chat template, built from what the generators say.

Byte-level BPE with Qwen3.5's split: every digit is a token of its own. Pairs of capitals never
merge, so that a code stays letter by letter.
"""

import json
import re
from collections.abc import Iterator
from random import Random

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX, Qwen3_5Tokenizer

from models.spark import facts, looking, small_talk, words
from models.spark.hidden_code import hidden_code
from models.spark.pictures import COLORS, SHAPES
from models.spark.prose import prose

VOCABULARY = 1280
CONTEXT_TOKENS = 4096
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Text of the conversations' own kinds and of prose; words and questions are repeated on top, so
# that each is a token or two.
CONVERSATIONS = 4000
PROSE_TEXTS = 2500
TEMPLATE = """\
{%- macro render(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- elif content -%}
    {%- for part in content -%}
      {%- if part.type in ('image', 'image_url') or 'image' in part or 'image_url' in part -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- elif 'text' in part -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' + render(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def build_tokenizer(seed: int) -> Qwen3_5Tokenizer:
    """Train the merges on generated text; the same seed gives the same vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    texts = (re.sub("[A-Z]{2,}", "", text) for text in _texts(Random(seed)))
    tokenizer.train_from_iterator(texts, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    built = Qwen3_5Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
        model_max_length=CONTEXT_TOKENS,
    )
    built.add_tokens(
        [AddedToken(text, special=text[1] == "|", normalized=False) for text in SPECIAL]
    )
    built.chat_template = TEMPLATE
    return built


def _texts(rng: Random) -> Iterator[str]:
    for _ in range(CONVERSATIONS):
        for conversation in (
            facts.facts(rng, 3, 8, 2),
            small_talk.count(rng),
            small_talk.chat(rng),
            small_talk.repeat(rng, 4),
            hidden_code(rng, 20),
        ):
            for turn in conversation.turns:
                yield f"{turn.role}\n"
                yield turn.text
    for _ in range(PROSE_TEXTS):
        yield prose(rng, 300)
    for question in (
        *looking.ASK_COLOR,
        *looking.ASK_SHAPE,
        *looking.ASK_SHAPE_COLOR,
        *looking.ASK_BACKGROUND,
        *looking.ASK_DIGIT,
    ):
        yield from [question] * 200
    for template in (*looking.ASK_ONE_COLOR, *looking.ASK_ONE_SHAPE, *looking.ASK_ONE_DIGIT):
        yield from [template.format(nth=nth) for nth in ("first", "second")] * 150
    for word in (*COLORS, *SHAPES, *words.DAYS, facts.UNKNOWN.lower()):
        yield from [word, f" {word}", word.capitalize(), f" {word.capitalize()}"] * 300
    for name in words.NAMES:
        yield from [f"\n{name}", f" {name}", name] * 60
