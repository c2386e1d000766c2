"""Small tokenizers of each kind, trained in a moment, and templates like the real ones."""

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The quick brown fox jumps over the lazy dog.\n" * 3,
    "user assistant system tool im_start im_end name arguments function",
    "Grüße aus Köln, 你好世界, привет мир, 😀😃 <|> </s> {}[]\"':,",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Renders everything a message can hold, in the order a template of an agent model would.
FULL = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}"
    "{% if message.name is defined %} {{ message.name }}{% endif %}"
    "{% if message.tool_call_id is defined %} {{ message.tool_call_id }}{% endif %}{{ '\n' }}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}\n<call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("two words")])
    tokenizer.add_special_tokens([AddedToken("<|late|>", normalized=False)])
    return tokenizer


def byte_fallback(*, strip):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *SPECIAL, *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS[:2], trainer)
    return _unspecial(tokenizer, bytes_)


def metaspace(*, prepend_scheme="always"):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def strange():
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("T", 1, 0)])
    return tokenizer


def _unspecial(tokenizer, spelled):
    """Byte pieces belong to the vocabulary, not to the added tokens."""
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [
        one for one in description["added_tokens"] if one["content"] not in spelled
    ]
    return Tokenizer.from_str(json.dumps(description))


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": lambda: byte_fallback(strip=0),
    "byte_fallback_strip": lambda: byte_fallback(strip=1),
    "metaspace": metaspace,
    "metaspace_first": lambda: metaspace(prepend_scheme="first"),
    "metaspace_never": lambda: metaspace(prepend_scheme="never"),
    "strange": strange,
}


def wrapped(tokenizer, template):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
