"""The reader of one answer: text as soon as it is certain, and the end at a stop string.

Text is certain when no token to come can change it: no half characters, and nothing that may be
the start of a stop string. The answer ends before the stop string that is complete first; of
several complete at one character, the longest counts.
"""

from surefoot.chat.pieces import Decoding


class AnswerReader:
    """Reads the tokens of one answer; constant time per character and stop string."""

    def __init__(self, decoding: Decoding, stop: tuple[str, ...]) -> None:
        self._decoding = decoding
        self._stops = [_Stop(one) for one in stop]
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was reached; the text ends before it."""
        return self._stopped

    def push(self, token: int) -> str:
        """Return the text that this token makes certain; '' once stopped."""
        return "" if self._stopped else self._read(self._decoding.push(token))

    def finish(self) -> str:
        """Return what was held back; no token follows."""
        if self._stopped:
            return ""
        certain = self._read(self._decoding.finish())
        if not self._stopped:
            certain += self._held
        self._held = ""
        return certain

    def _read(self, text: str) -> str:
        if not self._stops:
            return text
        self._held += text
        start = len(self._held) - len(text)
        for index, character in enumerate(text, start):
            complete = [len(stop.text) for stop in self._stops if stop.reads(character)]
            if complete:
                self._stopped = True
                return self._release(index + 1 - max(complete))
        return self._release(len(self._held) - max(stop.matched for stop in self._stops))

    def _release(self, end: int) -> str:
        certain, self._held = self._held[:end], self._held[end:]
        return certain


class _Stop:
    """One stop string, matched character by character (Knuth, Morris and Pratt)."""

    def __init__(self, text: str) -> None:
        assert text, "an empty stop string would end every answer"
        self.text = text
        self.matched = 0
        self._fallback = _borders(text)

    def reads(self, character: str) -> bool:
        """Take one character; true when it completes the stop string."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _borders(text: str) -> list[int]:
    """Return, for each prefix, the length of its longest border: a proper prefix and suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        length += text[index] == text[length]
        borders[index] = length
    return borders
