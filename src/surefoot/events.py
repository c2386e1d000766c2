"""Server-sent events: how a stream of text is cut into what it says.

As the HTML standard has it (section 9.2.6): lines end at CR, LF or both, and nowhere else, since
JSON may hold other separators raw; the data of several lines are one; an event ends at an empty
line. Names, ids and comments say nothing here. A stream may end without an empty line, as those of
some servers do: its last event counts.
"""

import re

_LINE_END = re.compile("\r\n|\n|\r")


class Events:
    """Collects the data of events from pieces of text, wherever the pieces are cut."""

    def __init__(self) -> None:
        self._rest = ""
        self._data: list[str] = []

    def feed(self, piece: str) -> list[str]:
        """Return the data of the events that end in this piece."""
        text = self._rest + piece
        held = "\r" if text.endswith("\r") else ""  # its line feed may still come
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._rest = rest + held
        ended = []
        for line in lines:
            if line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and self._data:
                ended.append("\n".join(self._data))
                self._data = []
        return ended

    def end(self) -> list[str]:
        """Return the data of an event that the stream's end cut off, if there is one."""
        return self.feed("\n\n")
