"""Receipts to Prometheus."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted import RECEIPT, Server

from surefoot.receipt import Finish, Kind, Media, Miss, Timings
from surefoot.server import Metrics


def samples(text):
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(metrics, name, **labels):
    found = samples(metrics.text(None).decode())
    return found.get((f"surefoot_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def metrics():
    return Metrics()


def test_a_receipts_numbers_are_counted(metrics):
    for _ in range(2):
        metrics.observe(replace(RECEIPT, committed_tokens=5))
    assert value(metrics, "restored_tokens_total", kind="turn", source="ram") == 32
    assert value(metrics, "restored_tokens_total", kind="turn", source="ssd") == 32
    assert value(metrics, "computed_tokens_total", kind="turn") == 16
    assert value(metrics, "committed_tokens_total", kind="turn") == 10
    assert value(metrics, "misses_total", reason="diverged") == 2
    assert value(metrics, "turns_total", kind="turn", finish="stop") == 2
    assert value(metrics, "ttft_seconds_sum") == pytest.approx(0.12)
    assert value(metrics, "restore_seconds_sum") == pytest.approx(0.004)


def test_what_did_not_happen_is_not_counted(metrics):
    metrics.observe(
        replace(
            RECEIPT,
            restored_tokens=0,
            sources={},
            computed_tokens=40,
            miss_reason=None,
            timings_ms=Timings(),
        )
    )
    assert value(metrics, "ttft_seconds_count") == 0
    assert value(metrics, "restore_seconds_count") == 0
    assert value(metrics, "misses_total", reason="diverged") is None


def test_idle_work_is_told_apart(metrics):
    metrics.observe(replace(RECEIPT, kind=Kind.IDLE))
    assert value(metrics, "computed_tokens_total", kind="idle") == 8
    assert value(metrics, "turns_total", kind="idle", finish="stop") == 1
    assert value(metrics, "misses_total", reason="diverged") is None
    assert value(metrics, "ttft_seconds_count") == 0


def test_images_are_counted_by_whether_the_tower_was_spared(metrics):
    seen = tuple(Media("image", "ab", 4, hit) for hit in (True, True, False))
    metrics.observe(replace(RECEIPT, media=seen, timings_ms=Timings(media=40)))
    metrics.observe(replace(RECEIPT, media=seen, kind=Kind.IDLE))
    metrics.observe(RECEIPT)
    assert value(metrics, "media_total", feature_hit="true") == 2
    assert value(metrics, "media_total", feature_hit="false") == 1
    assert value(metrics, "media_seconds_sum") == pytest.approx(0.04)
    assert value(metrics, "media_seconds_count") == 1


def test_every_finish_and_miss_has_its_label(metrics):
    for finish in Finish:
        metrics.observe(replace(RECEIPT, finish=finish))
        assert value(metrics, "turns_total", kind="turn", finish=finish.value) == 1
    for reason in Miss:
        metrics.observe(replace(RECEIPT, miss_reason=reason))
        assert value(metrics, "misses_total", reason=reason.value) >= 1


def test_the_page_shows_counters_and_the_status_as_gauges():
    server = Server()
    server.backend.metrics.observe(RECEIPT)
    response = server.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(response.text)
    assert found["surefoot_pending_writes", ()] == 3
    assert found["surefoot_tier_bytes", (("tier", "ram"),)] == 10
    assert found["surefoot_tier_bytes", (("tier", "ssd"),)] == 20
    assert found["surefoot_tier_up", (("tier", "ram"),)] == 1
    assert found["surefoot_tier_up", (("tier", "ssd"),)] == 0
    assert found["surefoot_features_bytes", (("tier", "ram"),)] == 7
    assert found["surefoot_features_items", (("tier", "ssd"),)] == 2
    assert "'features.*.capacity' of /v1/cache." in response.text
    assert found["surefoot_counters_quarantines", ()] == 1
    assert found["surefoot_idle_work", ()] == 0
    assert all(name.startswith("surefoot_") for name, _ in found)


def test_while_loading_the_page_has_counters_only():
    response = Server(loading=True).get("/metrics")
    assert response.status_code == 200
    assert "surefoot_ttft_seconds_count 0.0" in response.text
    assert "pending_writes" not in response.text


def test_two_servers_share_no_counters():
    one, other = Metrics(), Metrics()
    one.observe(RECEIPT)
    assert value(other, "computed_tokens_total", kind="turn") is None
