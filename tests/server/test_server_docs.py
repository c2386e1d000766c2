"""docs/API.md says what the code does: every field, rule, error, receipt field and metric."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE as HEAD_BYTES
from prometheus_client.parser import text_string_to_metric_families
from scripted import RECEIPT, config

from surefoot import settings
from surefoot.receipt import Media
from surefoot.scheduler import CacheMode
from surefoot.server import Limits, Metrics, fields
from surefoot.server.fetching import DEADLINE_S, REDIRECTS
from surefoot.server.fields import ChatFields, TextFields
from surefoot.server.messages import OTHER_PARTS
from surefoot.server.openapi import describe
from surefoot.server.refusals import STATUS
from surefoot.server.room import PACE, SLOW_S
from surefoot.server.running import MOST_BEHIND

PAGE = (Path(__file__).parents[2] / "docs" / "API.md").read_text()


def table(title):
    """The rows of the first table under a heading, as lists of cells."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def named(title):
    return {row[0].strip("`"): row[1] for row in table(title)}


ENDPOINTS = [
    (
        "Chat completions",
        ChatFields,
        fields.CHAT_FIXED,
        fields.CHAT_WITHOUT_EFFECT,
        fields.CHAT_REFUSED,
    ),
    ("Completions", TextFields, fields.TEXT_FIXED, fields.WITHOUT_EFFECT, fields.TEXT_REFUSED),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: one[0])
def test_every_field_is_on_the_page_with_its_rule(endpoint):
    title, model, fixed, without_effect, refused = endpoint
    honoured = {name: one.description for name, one in model.model_fields.items()}
    assert named(f"{title}: honoured") == honoured
    assert named(f"{title}: without effect") == dict(without_effect)
    assert named(f"{title}: refused") == dict(refused)
    shown = {name: f"`{json.dumps(value)}`" for name, value in fixed.items()}
    assert named(f"{title}: one value only") == shown


def test_every_receipt_field_is_on_the_page():
    assert set(named("The receipt")) == set(RECEIPT.to_json())


def test_every_status_is_on_the_page():
    shown = {(int(row[0]), row[1], row[2]) for row in table("Errors")}
    assert shown == {(row.status, row.type, row.code or "null") for row in STATUS.values()}


def test_every_cache_mode_is_on_the_page():
    shown = [row[0].strip("`") for row in table("The cache, per request")]
    assert [f"x-surefoot-cache: {mode.value}" for mode in CacheMode] == shown[:-1]


def test_every_metric_is_on_the_page():
    metrics = Metrics()
    metrics.observe(replace(RECEIPT, media=(Media("image", "ab", 4, feature_hit=True),)))
    text = metrics.text(None).decode()
    labels = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):  # prometheus_client adds these
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown = family.samples[0].labels
        labels[name] = {f"`{label}`" for label in shown if label != "le"}
    assert labels == {
        name: set(filter(None, row.split(", "))) for name, row in named("Metrics").items()
    }


def test_every_field_of_a_media_item_is_in_the_receipt_of_the_page():
    [row] = [row for row in table("The receipt") if row[0] == "`media`"]
    item = Media("image", "ab", 4, feature_hit=True).to_json()
    assert [f"`{name}`" for name in item] == re.findall(r"`\w+`", row[1])
    assert set(re.findall(r"`(\w+)`", named("The receipt")["timings_ms"])) == set(
        RECEIPT.to_json()["timings_ms"]
    )


MIB = 2**20


def test_the_limits_on_the_page_are_the_defaults():
    limits = Limits()
    assert f"a body above {limits.body_bytes // MIB} MiB" in PAGE
    assert f"At most {limits.messages} messages" in PAGE
    assert named("Images") == {
        "images of a request": f"{limits.images}",
        "one file": f"{limits.image_bytes // MIB} MiB",
        "all files of a request": f"{limits.files_bytes // MIB} MiB",
        "a body without its images": f"{limits.body_bytes // MIB} MiB",
        "a body with them": f"{limits.chat_body_bytes // MIB} MiB",
        "all requests together": f"{limits.room_bytes // MIB} MiB",
        "redirects": f"{REDIRECTS}",
        "fetching a request's images": f"{DEADLINE_S:g} s",
    }
    assert (settings.MAX_IMAGES.default, settings.IMAGE_URLS.default) == (limits.images, "off")
    nbytes = settings.parse_bytes(settings.IMAGE_BYTES.default, flag="--image-bytes")
    assert nbytes == limits.image_bytes


def test_how_much_and_how_long_is_on_the_page():
    limits = Limits()
    assert named("How much, and how long") == {
        "requests at work or waiting": f"{limits.requests}",
        "of one client": f"{limits.client_requests}",
        "bytes that one client's requests hold": f"{limits.client_bytes // MIB} MiB",
        "connections": f"{limits.connections}",
        "a request's line and headers, while they are not whole": f"{HEAD_BYTES // 2**10} KiB",
        "waiting for a head, for more of a body, for a client to read on": f"{limits.stall_s:g} s",
        "waiting for a whole body": f"{limits.body_s:g} s",
        "events that a client may be behind its stream": f"{MOST_BEHIND}",
    }
    text = PAGE.replace("\n", " ")
    assert f"less than {PACE // MIB} MiB in its last {SLOW_S:g} s gives way" in text


def test_every_path_is_on_the_page():
    page = PAGE.replace("{id}", "{model}")
    for path, item in describe(config())["paths"].items():
        for method in {"get", "post"} & set(item):
            assert f"`{method.upper()} {path}`" in page


def test_every_other_part_is_on_the_page_with_the_reason():
    for kind, why in OTHER_PARTS.items():
        assert f"`{kind}` ({why})" in PAGE.replace("\n", " ")


def test_every_code_on_the_page_is_in_the_source():
    source = "".join(
        path.read_text() for path in (Path(__file__).parents[2] / "src" / "surefoot").rglob("*.py")
    )
    sentence = re.search(r"A more exact `code` may stand.*?\n\n", PAGE, re.DOTALL)[0]
    for code in re.findall(r"`(\w+_\w+)`", sentence):
        assert f'"{code}"' in source
