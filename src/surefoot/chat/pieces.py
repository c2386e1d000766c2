"""Tokens to text, one at a time, byte for byte what the tokenizer says of them all.

A token is a run of bytes, not of characters: half a character is held back until its other half
comes. What a decoder does is read off the tokenizer's own description; three kinds are known well
enough to be followed in constant time per token, any other is asked anew for the whole text:

    byte level        GPT-2, Llama 3, Qwen, SmolLM2: every character of a token stands for a byte
    pieces            SentencePiece with byte fallback: a mark for the space, ``<0x0A>`` for a byte
    metaspace         SentencePiece without byte fallback
    anything else     correct, but linear in the answer's length for every token

Special tokens are not rendered.
"""

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from tokenizers import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoding(Protocol):
    """One answer being decoded."""

    def push(self, token: int) -> str:
        """Return the text that this token makes certain."""
        ...

    def finish(self) -> str:
        """Return what is left, once no token follows."""
        ...


class Pieces:
    """What each token of one tokenizer stands for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        description = json.loads(tokenizer.to_str())
        self._special = frozenset(
            added["content"] for added in description["added_tokens"] if added["special"]
        )
        self._decoder: Mapping[str, Any] = description["decoder"] or {"type": "none"}
        self._form = _form(self._decoder)
        self._memo: dict[int, bytes | None] = {}

    def decoding(self) -> Decoding:
        """Start an answer."""
        if self._decoder["type"] == "ByteLevel":
            return _ByteLevel(self)
        return _Whole(self._tokenizer) if self._form is None else _Fused(self, self._form)

    def shown(self, token: int) -> tuple[str, bytes]:
        """Return a token by itself, special or not: its text, and the bytes it stands for."""
        spelled = self.spelling(token)
        if spelled is None:
            return "", b""
        if spelled in self._special:
            raw = spelled.encode()
        elif self._decoder["type"] == "ByteLevel":
            raw = _level_bytes(spelled)
        elif self._form is None:
            raw = self._tokenizer.decode([token], skip_special_tokens=False).encode()
        else:
            raw = self._form.raw(spelled)
        return raw.decode("utf-8", "replace"), raw

    def spelling(self, token: int) -> str | None:
        """Return the vocabulary's spelling; None for an id that no token has."""
        return self._tokenizer.id_to_token(token)

    def rendered(self, token: int) -> str | None:
        """Return the spelling of a token that is part of the text; None if it is not."""
        spelled = self.spelling(token)
        return None if spelled in self._special else spelled

    def level_bytes(self, token: int) -> bytes:
        """Return the bytes a byte-level token adds to the text; b'' for a special one."""
        known = self._memo.get(token)
        if known is None:
            spelled = self.rendered(token)
            known = self._memo[token] = b"" if spelled is None else _level_bytes(spelled)
        return known


@dataclass(frozen=True, slots=True)
class _FusedForm:
    """A decoder that joins pieces: which spellings it replaces, and what it strips in front."""

    replace: tuple[tuple[str, str], ...]
    byte_fallback: bool
    strip: str = ""
    strip_most: int = 0  # leading characters of the text that may be stripped
    first_only: str = ""  # a mark that the first piece loses

    def text(self, spelled: str) -> str:
        """Return a piece as text, byte pieces excepted."""
        for old, new in self.replace:
            spelled = spelled.replace(old, new)
        return spelled

    def byte(self, spelled: str) -> int | None:
        """Return the byte that a piece stands for, if it stands for one."""
        found = _BYTE.fullmatch(spelled) if self.byte_fallback else None
        return int(found[1], 16) if found else None

    def raw(self, spelled: str) -> bytes:
        """Return the bytes of a piece."""
        byte = self.byte(spelled)
        return self.text(spelled).encode() if byte is None else bytes([byte])


class _ByteLevel:
    """UTF-8 over the tokens' bytes; what is not UTF-8 becomes U+FFFD, as in the tokenizer."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._pieces.level_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Fused:
    """Pieces joined; a run of byte pieces is one text, or one U+FFFD per byte if it is not UTF-8.

    So a run is certain only when it ends: the tokenizer looks at all of it at once.
    """

    def __init__(self, pieces: Pieces, form: _FusedForm) -> None:
        self._pieces = pieces
        self._form = form
        self._run = bytearray()
        self._strip_left = form.strip_most
        self._first = True

    def push(self, token: int) -> str:
        spelled = self._pieces.rendered(token)
        if spelled is None:
            return ""
        first, self._first = self._first, False
        byte = self._form.byte(spelled)
        if byte is not None:
            self._run.append(byte)
            return ""
        if first and self._form.first_only:
            spelled = spelled.replace(self._form.first_only, "")
        return self._stripped(self._ended_run() + self._form.text(spelled))

    def finish(self) -> str:
        return self._stripped(self._ended_run())

    def _ended_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _stripped(self, text: str) -> str:
        while text and self._strip_left:
            if text[0] != self._form.strip:
                self._strip_left = 0
                break
            self._strip_left -= 1
            text = text[1:]
        return text


class _Whole:
    """Any decoder: decode everything, keep what cannot change any more as far as one can tell."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._said = ""

    def push(self, token: int) -> str:
        self._tokens.append(token)
        return self._more(self._decoded().rstrip(_REPLACEMENT))

    def finish(self) -> str:
        return self._more(self._decoded())

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._tokens, skip_special_tokens=True)

    def _more(self, text: str) -> str:
        if not text.startswith(self._said):
            return ""
        more = text[len(self._said) :]
        self._said = text
        return more


def _form(decoder: Mapping[str, Any]) -> _FusedForm | None:
    """Read a decoder's description; None if it is not one we can follow."""
    if decoder["type"] == "Metaspace":
        mark = decoder["replacement"]
        first_only = "" if decoder["prepend_scheme"] == "never" else mark
        return _FusedForm(((mark, " "),), byte_fallback=False, first_only=first_only)
    steps = list(decoder["decoders"]) if decoder["type"] == "Sequence" else []
    replace: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        step = steps.pop(0)
        replace.append((step["pattern"]["String"], step["content"]))
    match [step["type"] for step in steps]:
        case ["ByteFallback", "Fuse"]:
            return _FusedForm(tuple(replace), byte_fallback=True)
        case ["ByteFallback", "Fuse", "Strip"] if steps[2]["stop"] == 0:
            strip = steps[2]
            return _FusedForm(
                tuple(replace),
                byte_fallback=True,
                strip=strip["content"],
                strip_most=strip["start"],
            )
        case _:
            return None


def _level_bytes(spelled: str) -> bytes:
    alphabet = _alphabet()
    try:
        return bytes(alphabet[character] for character in spelled)
    except KeyError:
        # An added token is spelled in plain text, which the alphabet may lack (a space, say).
        return spelled.encode()


@cache
def _alphabet() -> Mapping[str, int]:
    """Return which byte each character of a byte-level spelling stands for.

    GPT-2's table (openai/gpt-2:src/encoder.py, ``bytes_to_unicode``): printable Latin-1 stands for
    itself, the other bytes take the characters from U+0100 on, in order.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | shifted
