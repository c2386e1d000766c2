"""How a report says things in few words: what a verdict means, and what a request said.

Prompts are thousands of words long and alike but for a few, so a reader is shown their ends, the
words that the verdict hangs on, and the place where two requests part.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.probe.plants import codes_in
from surefoot.probe.verdicts import Evidence, Shown, Verdict
from surefoot.probe.witnesses import TTFT

MEANINGS: dict[Verdict, str] = {
    Verdict.CONTAMINATED: "an answer came from what only another request had: do not trust this "
    "cache, and send the report to the server's makers",
    Verdict.WRONG: "with its cache the server fails at what it does right without: do not trust "
    "this cache, and send the report to the server's makers",
    Verdict.DRIFT: "answers with and without the cache differ as rounding does: fine where the "
    "same answer is not needed twice",
    Verdict.INCONCLUSIVE: "not everything could be told; each reason says what would settle it",
    Verdict.CLEAN: "state was reused, and every answer is the one given without reuse",
    Verdict.SKIPPED: "does not apply to this server",
}

WHOLE_MOST = 240  # characters of a text that is shown whole
END = 70  # characters shown of either end of a longer one
AROUND = 45  # and on both sides of what matters inside it
GAP_LEAST = 30  # what is left out is at least so long
DATA_URL = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_DATA_SHOWN = 48  # characters of a data URL shown in a request's JSON


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a request.

    Attributes:
        role: who says it.
        text: all its text parts.
        pictures: the URLs of its images, in order.
    """

    role: str
    text: str
    pictures: tuple[str, ...] = ()


def said_in(request: Mapping[str, Any]) -> list[Said]:
    """Return the messages of a request's body."""
    return [_said(one) for one in request.get("messages", ())]


def fields_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request's body says beside its messages."""
    return {name: value for name, value in request.items() if name != "messages"}


def as_text(request: Mapping[str, Any]) -> str:
    """Return a request's body as indented JSON, with the bytes of images cut short."""
    text = json.dumps(request, indent=2, ensure_ascii=False, default=str)
    return DATA_URL.sub(lambda found: _cut(found[0]), text)


def words_that_matter(evidence: Evidence) -> tuple[str, ...]:
    """Return codes and words of a finding's answers and expectations, for readers to look for."""
    found: set[str] = set()
    for one in evidence.shown:
        found |= codes_in(one.answer)
        expected = one.facts.get("expected")
        found |= {expected} if expected else set()
    return tuple(sorted(found))


def excerpt(text: str, words: Iterable[str] = (), other: str | None = None) -> list[str]:
    """Return the pieces of a text that tell it from others; between two of them some is left out.

    Args:
        text: as long as it likes.
        words: shown where they first stand, with what is around them.
        other: shown is where ``text`` stops being like this one.
    """
    if len(text) <= WHOLE_MOST:
        return [text]
    spans = [(0, END), (len(text) - END, len(text))]
    found = (standing_alone([word]).search(text) for word in words)
    places = [(one.start(), len(one[0])) for one in found if one]
    if other is not None and other != text:
        places.append((_shared(text, other), 0))
    spans += [(max(0, at - AROUND), min(len(text), at + length + AROUND)) for at, length in places]
    return [text[start:end] for start, end in _joined(_whole_words(text, *one) for one in spans)]


def standing_alone(words: Iterable[str]) -> re.Pattern[str]:
    """Return what matches any of these words where it stands alone, in any case."""
    either = "|".join(map(re.escape, words))
    return re.compile(rf"(?<!\w)({either})(?!\w)", re.IGNORECASE)


def reuse_words(shown_by: Iterable[str]) -> str:
    """Return the witnesses of reuse in words."""
    return ", ".join("time" if name == TTFT else name for name in shown_by)


def second_title(verdict: Verdict) -> str:
    """Return what the second exchange of a finding is to the accused one."""
    if verdict is Verdict.CONTAMINATED:
        return "the other request"
    return "what it is compared with"


def facts_words(shown: Shown) -> str:
    """Return what an exchange cost and counted, in a line."""
    facts = shown.facts
    key = facts.get("key", 1)
    counts = [f"{name} {count:,}" for name, count in (facts.get("counters") or {}).items()]
    prompt, ttft, status = (facts.get(name) for name in ("prompt_tokens", "ttft_ms", "status"))
    words = [str(facts["role"])] if "role" in facts else ["not answered in this leg"]
    words += [f"API key {key}"] if key != 1 else []
    words += [f"{prompt:,} tokens"] if prompt is not None else []
    words += [", ".join(counts)] if counts else []
    words += [f"first token after {ttft:,.0f} ms"] if ttft is not None else []
    words += [f"status {status}"] if status not in (None, 200) else []
    return ", ".join(words)


def _said(message: Mapping[str, Any]) -> Said:
    content, role = message.get("content"), str(message.get("role", ""))
    if not isinstance(content, list | tuple):
        return Said(role, "" if content is None else str(content))
    texts, pictures = [], []
    for part in content:
        if part.get("type") == "image_url":
            pictures.append(str(part["image_url"]["url"]))
        else:
            texts.append(str(part.get("text", "")))
    return Said(role, "\n".join(texts), tuple(pictures))


def _shared(text: str, other: str) -> int:
    """Return how many first characters two texts share."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(text), len(other)))


def _whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span that begins and ends with words, where the text has any that are short."""
    if start and (space := text.rfind(" ", max(0, start - AROUND), start)) >= 0:
        start = space + 1
    if end < len(text) and (space := text.find(" ", end, end + AROUND)) >= 0:
        end = space
    return start, end


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] < GAP_LEAST:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _cut(url: str) -> str:
    if len(url) <= _DATA_SHOWN * 2:
        return url
    return f"{url[:_DATA_SHOWN]}\N{HORIZONTAL ELLIPSIS} ({len(url):,} characters)"
