"""The report: no key leaves it, a page that needs nothing else, XML that builds fail on rightly."""

import html.parser
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from surefoot import pictures
from surefoot.probe.junit import junit
from surefoot.probe.page import page
from surefoot.probe.publishing import publishable
from surefoot.probe.telling import MEANINGS, WHOLE_MOST, as_text, excerpt, said_in
from surefoot.probe.verdicts import (
    EXIT_CODES,
    Evidence,
    LegReport,
    ProbeReport,
    Reuse,
    Shown,
    Verdict,
)

KEY = "sk-very-secret-key"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>"
WHEN = "2026-11-30T07:45:00+00:00"
LONG = " ".join(f"word{number}" for number in range(500))


def hide(text):
    return text.replace(KEY, "[key]")


def shown(label="A1", text="What?", answer="yes", **facts):
    known = {"role": "warm", "expected": "482913", "status": 200, "error": None}
    known |= {"prompt_tokens": 600, "counters": {"cached_tokens": 512}, "ttft_ms": 31.0}
    known |= {"first_token": [["yes", -0.1]]}
    return Shown(label, {"messages": [{"role": "user", "content": text}]}, answer, known | facts)


def leg(verdict, name="fork", **fields):
    known = {"reason": f"because of {name}", "tokens": 1234, "seconds": 2.5}
    return LegReport(name, "a title", verdict, **(known | fields))


def report(*legs, **fields):
    known = {"server": "http://s/v1", "model": "m", "seed": 7, "facts": (("images", "taken"),)}
    return ProbeReport(**(known | {"legs": legs, "tokens": 5000, "seconds": 60.0} | fields))


def accused(first, *others, verdict=Verdict.CONTAMINATED):
    return leg(verdict, evidence=(Evidence(verdict, "it holds 482913", (first, *others)),))


class Elements(html.parser.HTMLParser):
    """Collects elements, their attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


# --- what may be shown ---------------------------------------------------------------------------


def test_a_key_leaves_a_report_wherever_the_server_put_it():
    seen = shown(f"A {KEY}", f"text {KEY}", f"answer {KEY}", error=f"500: {KEY}", **{KEY: KEY})
    seen.facts["first_token"].append([KEY, -1.0])
    found = Evidence(Verdict.WRONG, f"says {KEY}", (seen,))
    one = leg(Verdict.WRONG, reason=f"why {KEY}", evidence=(found,), exchanges=(seen,))
    whole = report(
        one, server=f"http://{KEY}/v1", model=f"m-{KEY}", facts=((f"l {KEY}", f"w {KEY}"),)
    )
    fit = publishable(replace(whole, legs=(one,)), hide)
    forms = (repr(fit), json.dumps(fit.to_json()), page(fit, when=WHEN), junit(fit, when=WHEN))
    for form in forms:
        assert KEY not in form
        assert "[key]" in form
    assert fit.legs[0].verdict is Verdict.WRONG


def test_what_no_file_or_json_can_hold_is_replaced():
    odd = shown(answer="half \ud83d", first_token=[["\udc00", float("-inf")], ["b", float("nan")]])
    fit = publishable(report(accused(odd), seconds=1.5), hide)
    assert fit.legs[0].evidence[0].shown[0].answer == "half ?"
    assert fit.seconds == 1.5
    json.dumps(fit.to_json(), allow_nan=False)
    page(fit, when=WHEN).encode()
    assert ">half ?</bdi>" in page(fit, when=WHEN)


# --- in few words --------------------------------------------------------------------------------


def test_an_excerpt_shows_ends_and_the_words_that_matter_and_where_texts_part():
    text = f"{LONG} The code is 482913. {LONG}"
    other = text.replace("word300 ", "house ", 1)
    assert excerpt("short", ["482913"]) == ["short"]
    pieces = excerpt(text, ["482913", "not there"], other)
    assert pieces[0].startswith("word0 word1")
    assert pieces[-1].endswith("word498 word499")
    assert any("The code is 482913." in piece for piece in pieces)
    assert any("word299 word300 word301" in piece for piece in pieces)
    assert sum(map(len, pieces)) < 2 * WHOLE_MOST
    assert len(excerpt(text, (), text)) == 2
    assert any(
        "colour RED" in piece for piece in excerpt(f"{LONG} bored colour RED {LONG}", ["red"])
    )
    assert all(re.fullmatch(r"\S.*\S", piece) for piece in pieces)


def test_a_request_is_told_with_its_text_and_its_pictures():
    url = pictures.data_url(pictures.photo(1))
    parts = [pictures.said("Which?"), pictures.shown(pictures.photo(1)), pictures.said("Say.")]
    request = {"messages": [{"role": "user", "content": parts}], "cache_salt": "a"}
    (said,) = said_in(request)
    assert (said.role, said.text, said.pictures) == ("user", "Which?\nSay.", (url,))
    assert len(url) > 1000
    assert url not in as_text(request)
    assert f"({len(url):,} characters)" in as_text(request)
    assert said_in({"messages": [{"role": "assistant", "content": None}]})[0].text == ""


# --- the page ------------------------------------------------------------------------------------


def test_the_page_loads_and_runs_nothing():
    picture = pictures.shown(pictures.solid((255, 0, 0)))
    far = {"type": "image_url", "image_url": {"url": "http://elsewhere/x.png"}}
    drawn = {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zz4="}}
    content = [picture, far, drawn]
    seen = Shown("A", {"messages": [{"role": "user", "content": content}]}, "red", {"role": "warm"})
    read = Elements(page(report(accused(seen)), when=WHEN))
    names = {name for name, _ in read.elements}
    assert not names & {"script", "link", "iframe", "object", "base", "form", "svg"}
    sources = {one["src"] for one in read.of("img")}
    assert sources == {picture["image_url"]["url"]}
    assert all(one["href"].startswith("#") for one in read.of("a"))
    policy = next(one for one in read.of("meta") if one.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert "url(" not in page(report(), when=WHEN)


def test_whatever_a_server_says_stays_text():
    seen = shown(
        EVIL, EVIL, EVIL, error=EVIL, expected=EVIL, counters={EVIL: 3}, first_token=[[EVIL, -1.0]]
    )
    seen.request[EVIL] = EVIL
    finding = Evidence(Verdict.WRONG, EVIL, (seen, seen))
    one = LegReport("fork", EVIL, Verdict.WRONG, EVIL, Reuse((EVIL,), 3), (finding,), (seen,))
    text = page(report(one, server=EVIL, model=EVIL, facts=((EVIL, EVIL),)), when=EVIL)
    read = Elements(text)
    assert not read.of("script")
    assert not read.of("img")
    assert not read.of("b") or all(not one for one in read.of("b"))
    assert not [attributes for _, attributes in read.elements if "onerror" in attributes]
    assert "alert(1)" in read.text


def test_the_page_shows_both_requests_side_by_side_and_marks_what_matters():
    first = shown("B1", f"{LONG} My code is 734419. {LONG}", "it is 482913", expected="734419")
    donor = Shown("A1", {"messages": [{"role": "user", "content": "The code is 482913."}]}, "")
    text = page(report(accused(first, donor)), when=WHEN)
    read = Elements(text)
    assert text.count('<article class="exchange">') == 2
    assert "<mark>482913</mark>" in text
    assert "<mark>734419</mark>" in text
    assert "<mark>Red</mark> bored" in page(
        report(accused(shown(answer="Red bored", expected="red"))), when=WHEN
    )
    assert "the accused request: B1" in read.text
    assert "the other request: A1" in read.text
    assert "first token" in read.text
    assert text.count("[&hellip;]") == 2


def test_the_page_tells_the_run_and_every_exchange():
    exchanges = tuple(shown(f"request {number}", answer=f"said {number}") for number in range(5))
    reuse = Reuse(("cached_tokens", "ttft"), 512)
    one = leg(Verdict.CLEAN, reuse=reuse, exchanges=exchanges)
    told = report(one, leg(Verdict.SKIPPED, "restart"))
    read = Elements(page(told, when="a Monday"))
    for words in ("CLEAN", "http://s/v1", "a Monday", "60 s and 5,000 tokens", "taken", "--seed 7"):
        assert words in read.text
    assert "cached_tokens, time; up to 512 tokens" in read.text
    assert all(f"said {number}" in read.text for number in range(5))
    assert {one.get("id") for one in read.of("section")} == {"fork", "restart"}
    assert read.text.count("Because of restart") == 2


def test_an_answer_of_nothing_is_said_to_be_nothing():
    text = page(report(accused(shown(answer=""), verdict=Verdict.WRONG)), when=WHEN)
    assert "nothing at all" in text


# --- JUnit ---------------------------------------------------------------------------------------


def suite_of(*legs, **fields):
    text = junit(report(*legs, **fields), when=WHEN)
    assert text.startswith("<?xml version='1.0' encoding='utf-8'?>")
    return ElementTree.fromstring(text.encode()).find("testsuite")


def test_a_build_fails_exactly_where_the_exit_code_does():
    for verdict in Verdict:
        suite = suite_of(leg(verdict), leg(Verdict.SKIPPED, "restart"))
        bad = int(suite.get("failures")) + int(suite.get("errors"))
        known = report(leg(verdict)).verdict
        assert bool(bad) == bool(EXIT_CODES[known]), verdict
    assert suite_of().get("errors") == "1"


@pytest.mark.parametrize(
    ("verdict", "tag"),
    [
        (Verdict.CONTAMINATED, "failure"),
        (Verdict.WRONG, "failure"),
        (Verdict.DRIFT, "failure"),
        (Verdict.INCONCLUSIVE, "error"),
        (Verdict.SKIPPED, "skipped"),
    ],
)
def test_a_leg_is_a_case_that_ends_as_its_verdict_says(verdict, tag):
    suite = suite_of(leg(verdict), leg(Verdict.CLEAN, "edits"))
    case, clean = suite.findall("testcase")
    assert (case.get("name"), case.get("time")) == ("fork", "2.500")
    assert case.find(tag).get("message") == f"{verdict}: because of fork"
    assert [one.tag for one in clean] == ["system-out"]
    assert suite.get("tests") == "2"
    counted = {name: suite.get(name) for name in ("failures", "errors", "skipped")}
    assert counted == {"failures": "0", "errors": "0", "skipped": "0"} | {
        tag if tag == "skipped" else f"{tag}s": "1"
    }


def test_the_suite_says_what_was_probed():
    suite = suite_of(leg(Verdict.CLEAN), model="big\x00model")
    said = {one.get("name"): one.get("value") for one in suite.find("properties")}
    assert said == {
        "server": "http://s/v1",
        "model": "big\N{REPLACEMENT CHARACTER}model",
        "seed": "7",
        "verdict": "CLEAN",
        "tokens": "5000",
        "images": "taken",
    }
    assert (suite.get("timestamp"), suite.get("time")) == (WHEN, "60.000")


def test_a_failure_holds_the_finding_its_requests_and_the_answer():
    first = shown("B1", f"{LONG} My code is 734419. {LONG}", "it is \x1b[31m482913\uffff")
    text = suite_of(accused(first)).find("testcase/failure").text
    assert text.startswith(
        f"CONTAMINATED: it holds 482913 ({MEANINGS[Verdict.CONTAMINATED]})\n-- B1\nuser: word0 "
    )
    assert text.endswith(
        "answer: it is \N{REPLACEMENT CHARACTER}[31m482913\N{REPLACEMENT CHARACTER}"
    )
    assert len(text) < len(LONG)
