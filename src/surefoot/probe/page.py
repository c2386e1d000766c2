"""A report as one HTML page that needs nothing else: no script, no network, no other file.

All that a server said is untrusted: the template escapes it, and the page forbids itself, by a
content policy, to load or run anything. Pictures are shown only if they are data URLs of a form
that holds no script.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from math import exp

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from surefoot.probe import telling
from surefoot.probe.verdicts import Evidence, ProbeReport, Shown, Verdict

TEMPLATE = "page.html.jinja"
ANSWER_SHOWN = 80  # characters of an answer in the list of exchanges


def page(report: ProbeReport, *, when: str) -> str:
    """Return the report as an HTML document.

    Args:
        report: fit to be shown; see ``publishing.py``.
        when: the date and time of the run, as the reader is to see them.
    """
    template = _environment().from_string(
        files("surefoot.probe").joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    counts = {one: sum(leg.verdict is one for leg in report.legs) for one in Verdict}
    written = template.render(
        report=report,
        when=when,
        counts={verdict: count for verdict, count in counts.items() if count},
        meanings=telling.MEANINGS,
    )
    return written.strip() + "\n"


def _environment() -> Environment:
    made = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "pretty": telling.as_text,
        "reuse_words": telling.reuse_words,
        "facts_words": telling.facts_words,
        "said_in": telling.said_in,
        "fields_of": telling.fields_of,
        "words_that_matter": telling.words_that_matter,
        "second_title": telling.second_title,
        "excerpt": telling.excerpt,
        "marked": _marked,
        "shortened": _shortened,
        "drawable": _drawable,
        "probability": _probability,
        "quoted": _quoted,
        "capitalize_first": _capitalized,
        "other_text": _other_text,
    }
    return made


def _marked(text: str, words: Sequence[str]) -> Markup:
    """Return a text, escaped, with these words marked."""
    if not words:
        return escape(text)
    parts = telling.standing_alone(words).split(text)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(part) if at % 2 else escape(part)
        for at, part in enumerate(parts)
    )


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= ANSWER_SHOWN else f"{line[:ANSWER_SHOWN]}\N{HORIZONTAL ELLIPSIS}"


def _drawable(url: str) -> bool:
    return telling.DATA_URL.fullmatch(url) is not None


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _probability(logprob: float | None) -> str:
    """Return a logprob, in nats, as a percentage; a server may say one above 0."""
    return "" if logprob is None else f"{exp(min(0.0, logprob)):.2%}"


def _capitalized(text: str) -> str:
    """Return a sentence with a great letter first, and no other one changed."""
    return text[:1].upper() + text[1:]


def _other_text(evidence: Evidence, at: int, message: int) -> str | None:
    """Return the text in the same place of a finding's other request, None if there is none."""
    others: list[Shown] = [one for place, one in enumerate(evidence.shown) if place != at]
    said = telling.said_in(others[0].request) if others else []
    return said[message].text if message < len(said) else None
