"""Chats over small tokenizers."""

import pytest
from small_tokenizers import FULL, KINDS, wrapped

from surefoot.chat import Chat


@pytest.fixture(scope="session")
def make_chat():
    """Return ``(chat, tokenizer)`` for a kind of tokenizer and a template."""
    made = {}

    def make(kind="byte_level", template=FULL):
        if (kind, template) not in made:
            tokenizer = wrapped(KINDS[kind](), template)
            made[kind, template] = Chat(tokenizer), tokenizer
        return made[kind, template]

    return make
