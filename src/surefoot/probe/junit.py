"""A report as JUnit XML: one test case for each leg.

A build that reads it fails exactly where the exit code is not 0. CONTAMINATED, WRONG and DRIFT are
failures; INCONCLUSIVE is an error, since nothing was proven; where no leg came to a verdict at all,
the run itself is an error.
"""

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from surefoot.probe.telling import MEANINGS, excerpt, reuse_words, said_in, words_that_matter
from surefoot.probe.verdicts import Evidence, LegReport, ProbeReport, Verdict

CLASS = "surefoot.probe"
_TAGS = {
    Verdict.CONTAMINATED: "failure",
    Verdict.WRONG: "failure",
    Verdict.DRIFT: "failure",
    Verdict.INCONCLUSIVE: "error",
    Verdict.SKIPPED: "skipped",
}
# XML 1.0, section 2.2: what a document may hold.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: ProbeReport, *, when: str) -> str:
    """Return the report as a JUnit document.

    Args:
        report: fit to be shown; see ``publishing.py``.
        when: the date and time of the run, ISO 8601.
    """
    suite = Element("testsuite", name="surefoot probe", timestamp=when)
    suite.set("time", f"{report.seconds:.3f}")
    known = {"server": report.server, "model": report.model, "seed": str(report.seed)}
    known |= {"verdict": report.verdict.value, "tokens": str(report.tokens)}
    properties = SubElement(suite, "properties")
    for name, value in (*known.items(), *report.facts):
        SubElement(properties, "property", name=_held(name), value=_held(value))
    for leg in report.legs:
        _case(suite, leg)
    if report.verdict is Verdict.INCONCLUSIVE and not suite.findall("testcase/error"):
        _nothing_proven(suite)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    document = Element("testsuites")
    document.append(suite)
    indent(document)
    written: bytes = tostring(document, encoding="utf-8", xml_declaration=True)
    return written.decode("utf-8") + "\n"


def _case(suite: Element, leg: LegReport) -> None:
    case = SubElement(suite, "testcase", classname=CLASS, name=leg.name, time=f"{leg.seconds:.3f}")
    tag = _TAGS.get(leg.verdict)
    if tag is not None:
        ended = SubElement(case, tag, type=leg.verdict.value)
        ended.set("message", _held(f"{leg.verdict}: {leg.reason}"))
        ended.text = _held("\n\n".join("\n".join(_finding(one)) for one in leg.evidence)) or None
    said = SubElement(case, "system-out")
    shown = reuse_words(leg.reuse.shown_by) or "nothing"
    said.text = _held(f"{leg.title}\n{leg.reason}\nreuse shown by: {shown}; {leg.tokens:,} tokens")


def _nothing_proven(suite: Element) -> None:
    case = SubElement(suite, "testcase", classname=CLASS, name="run", time="0.000")
    message = "INCONCLUSIVE: no leg applied to this server, so nothing was proven"
    SubElement(case, "error", type="INCONCLUSIVE", message=message)


def _finding(evidence: Evidence) -> Iterator[str]:
    yield f"{evidence.verdict}: {evidence.says} ({MEANINGS[evidence.verdict]})"
    words = words_that_matter(evidence)
    for shown in evidence.shown:
        yield f"-- {shown.label}"
        for said in said_in(shown.request):
            pictures = f" [{len(said.pictures)} pictures]" if said.pictures else ""
            yield f"{said.role}:{pictures} {' [...] '.join(excerpt(said.text, words))}"
        yield f"answer: {shown.answer}"


def _held(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
