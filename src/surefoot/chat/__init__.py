"""Messages to a prompt, tokens to text.

    request.py       what a client asked for: plain values
    images.py        an image file -> final RGB pixels, by the one rule
    processor.py     pixels -> what the model's vision tower consumes, named
    vision.py        images and their places in a prompt
    template.py      messages -> text, by the model's own template; refuses what it would drop
    tokenizer.py     text -> tokens, where only the template writes special tokens
    pieces.py        tokens -> text, byte for byte, one token at a time
    answer.py        the reader of one answer: certain text, stop strings
    conversation.py  ``Chat``: all of it, bound to one tokenizer

No models and no torch here; transformers loads the tokenizer and the image processor, and renders
the template.
"""

from surefoot.chat.answer import AnswerReader
from surefoot.chat.conversation import Chat, load_chat
from surefoot.chat.images import ImageLimits

__all__ = ["AnswerReader", "Chat", "ImageLimits", "load_chat"]
