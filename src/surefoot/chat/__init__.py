"""Messages to a prompt, tokens to text.

    request.py       what a client asked for: plain values
    template.py      messages -> text, by the model's own template; refuses what it would drop
    tokenizer.py     text -> tokens, where only the template writes special tokens
    pieces.py        tokens -> text, byte for byte, one token at a time
    answer.py        the reader of one answer: certain text, stop strings
    conversation.py  ``Chat``: all of it, bound to one tokenizer

No models and no torch here; transformers only loads the tokenizer and renders its template.
"""

from surefoot.chat.answer import AnswerReader
from surefoot.chat.conversation import Chat, load_chat

__all__ = ["AnswerReader", "Chat", "load_chat"]
