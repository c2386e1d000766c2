"""Text to tokens, so that only the template writes special tokens.

A client may send the text of a special token; it must stay text. Where, and only where, a client's
string holds one, a marker that the input holds nowhere is put inside it (``Marker.put``). The
template is rendered over the marked strings, so every special token that is still whole in the
result is the template's own. Those are swapped for stand-ins, the markers are taken out, and the
text is encoded in one pass by a copy of the tokenizer that knows the stand-ins, under the ids of
the special tokens, and no special token by its real spelling. One pass, so that what surrounds a
special token is encoded as it always is.

Input that needs no marker is encoded in the ordinary way.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from surefoot.errors import RequestError

# Code points that Unicode keeps for a program's own use and that no text means anything by.
_MARKERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
# UTF-8 bytes that composing makes one of, at most: U+1FBE U+0308 U+0301, 7 bytes, become U+0390, 2
# bytes, and no text shrinks more (a test walks all of Unicode).
COMPOSED_MAX = 4
_FENCE = "\U0010fffe"  # around the number of a stand-in


class Marker:
    """Breaks and mends the special tokens in one request's strings; '' breaks nothing."""

    def __init__(self, character: str, special: re.Pattern[str]) -> None:
        self._character = character
        self._special = special

    def __bool__(self) -> bool:
        return bool(self._character)

    def put(self, value: Any) -> Any:
        """Return a JSON value in which no string, nor key, holds a special token."""
        if not self:
            return value
        match value:
            case str():
                return self._break(value)
            case Mapping():
                return {self.put(key): self.put(one) for key, one in value.items()}
            case list() | tuple():
                return [self.put(one) for one in value]
            case _:
                return value

    def out(self, text: str) -> str:
        """Return rendered text without the markers, as themselves or escaped for JSON."""
        return re.sub(rf"{self._character}|\\+{_escape(self._character)}", "", text)

    def _break(self, text: str) -> str:
        # A lookahead finds overlapping tokens too: behind every first character stands a marker.
        starts = [match.start() for match in self._special.finditer(text)]
        pieces = [text[begin:end] for begin, end in _spans([start + 1 for start in starts], text)]
        return self._character.join(pieces)


class Encoder:
    """Encodes text for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = False
        self._tokenizer = tokenizer
        self._description = json.loads(tokenizer.to_str())
        added = self._description["added_tokens"]
        self._special = {one["content"]: index for index, one in enumerate(added) if one["special"]}
        # Longest first, so that a token takes precedence over a token that it begins with.
        spelled = "|".join(re.escape(one) for one in sorted(self._special, key=len, reverse=True))
        self._whole = re.compile(f"({spelled})" if spelled else "((?!))")
        self._starts = re.compile(f"(?={self._whole.pattern})")
        self._copy: Tokenizer | None = None
        # Not the vocabulary's size: ids may have holes.
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.tokens = max(vocabulary.values()) + 1
        self._keeps_bytes = _keeps_bytes(self._description)
        self._lacking = bytes(one for one in range(128) if _spelled(one) not in vocabulary)
        self._complete = vocabulary.keys() >= set(ByteLevel.alphabet())
        self._composes = self._description["normalizer"] is not None
        self._longest = max(len(piece.encode()) for piece in vocabulary)

    def least_tokens(self, strings: Iterable[str]) -> int:
        """Return how many tokens these strings make at least; 0 where that cannot be known.

        Costs one look at the bytes. Where every byte that has a piece of its own becomes part of
        some piece, and a piece is spelled in no fewer bytes than it stands for, the longest piece
        bounds them all. Composing (NFC) may shorten a text before, by ``COMPOSED_MAX`` at most.
        """
        if not self._keeps_bytes:
            return 0
        if self._complete:
            kept = sum(len(one.encode("utf-8", "surrogatepass")) for one in strings)
        elif self._composes:
            return 0
        else:
            ascii_bytes = (one.encode("ascii", "ignore") for one in strings)
            kept = sum(len(one.translate(None, self._lacking)) for one in ascii_bytes)
        return kept // (self._longest * (COMPOSED_MAX if self._composes else 1))

    def raw(self, text: str, *, param: str) -> list[int]:
        """Encode a caller's own prompt: special tokens are parsed, and added where usual."""
        return self._tokenizer.encode(_encodable(text, param), add_special_tokens=True).ids

    def marker(self, strings: Iterable[str], *, param: str) -> Marker:
        """Choose the marker for a request's strings; the empty one if none holds a special token.

        Raises:
            RequestError: a string that holds a special token cannot be told apart from it.
        """
        listed = list(strings)
        found = {match[1] for one in listed for match in self._starts.finditer(one)}
        if not found:
            return Marker("", self._starts)
        everything = "\0".join(listed)
        free = (one for one in _MARKERS if one not in everything and _escape(one) not in everything)
        character = next(free, "")
        if not character or _FENCE in everything or min(map(len, found)) == 1:
            raise RequestError(
                f"'{param}' holds the special token {min(found, key=len)!r} as text, with "
                "characters that make it impossible to keep it text",
                param=param,
            )
        return Marker(character, self._starts)

    def rendered(self, text: str, marker: Marker, *, param: str) -> list[int]:
        """Encode what a template made of marked strings."""
        _encodable(text, param)
        if not marker:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        # Splitting by the one group gives text, special token, text, special token, ..., text.
        pieces = self._whole.split(text)
        mended = [
            _stand_in(self._special[piece]) if index % 2 else marker.out(piece)
            for index, piece in enumerate(pieces)
        ]
        return self._stand_ins().encode("".join(mended), add_special_tokens=False).ids

    def _stand_ins(self) -> Tokenizer:
        """Return the copy that knows each special token by its stand-in only; made at first use."""
        if self._copy is None:
            self._copy = Tokenizer.from_str(json.dumps(self._respelled()))
        return self._copy

    def _respelled(self) -> dict[str, Any]:
        respelled = {one: _stand_in(index) for one, index in self._special.items()}
        added = [
            one | {"content": respelled[one["content"]], "normalized": False}
            if one["special"]
            else one
            for one in self._description["added_tokens"]
        ]
        model = _respelled_model(self._description["model"], respelled)
        return {**self._description, "added_tokens": added, "model": model}


def _keeps_bytes(description: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer is byte-level BPE that drops, merges and replaces nothing.

    It may compose characters (NFC), which keeps every one of them in some form.
    """
    model, added = description["model"], description["added_tokens"]
    if model["type"] != "BPE" or (description["decoder"] or {}).get("type") != "ByteLevel":
        return False
    removes = '"Removed"' in json.dumps(description["pre_tokenizer"])
    swallows = any(one["lstrip"] or one["rstrip"] for one in added)
    composes = description["normalizer"] in (None, {"type": "NFC"})
    return composes and not removes and not swallows


def _spelled(byte: int) -> str:
    """Return how a byte-level vocabulary spells an ASCII byte."""
    (piece, _), *_ = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
    return str(piece)


def _respelled_model(model: Mapping[str, Any], respelled: Mapping[str, str]) -> dict[str, Any]:
    """Return the model with the special tokens renamed in its vocabulary and left out of merges."""
    changed: dict[str, Any] = dict(model)
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pieces with scores
        changed["vocab"] = [[respelled.get(piece, piece), score] for piece, score in vocabulary]
    else:
        changed["vocab"] = {respelled.get(piece, piece): id_ for piece, id_ in vocabulary.items()}
    if model.get("unk_token") is not None:
        changed["unk_token"] = respelled.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [tuple(one.split(" ") if isinstance(one, str) else one) for one in model["merges"]]
        changed["merges"] = [
            list(pair) for pair in pairs if not respelled.keys() & {*pair, "".join(pair)}
        ]
    return changed


def strings_in(value: Any) -> Iterator[str]:
    """Yield every string and key of a JSON value."""
    match value:
        case str():
            yield value
        case Mapping():
            for key, one in value.items():
                yield str(key)
                yield from strings_in(one)
        case list() | tuple():
            for one in value:
                yield from strings_in(one)


def _stand_in(index: int) -> str:
    return f"{_FENCE}{index}{_FENCE}"


def _escape(marker: str) -> str:
    return f"u{ord(marker):04x}"


def _spans(cuts: Iterable[int], text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for cut in (*cuts, len(text)):
        yield begin, cut
        begin = cut


def _encodable(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"'{param}' holds U+{ord(text[error.start]):04X}, half of a surrogate pair; send whole "
            "characters",
            param=param,
        ) from None
    return text
