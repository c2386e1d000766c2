"""Receipts to Prometheus: counters and histograms of turns, gauges of the backend's status.

A receipt's numbers are the only numbers: nothing here measures anything.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from surefoot.receipt import Kind, Receipt

Status = Callable[[], Mapping[str, Any] | None]

# Seconds: a warm first token on a laptop, to a cold prefill of a long prompt there.
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
MEDIA_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25)
RESTORE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


# What of a status is told by tier, and how its gauges' names begin.
BY_TIER: Mapping[str, str] = {"tiers": "tier", "features": "features"}


class Metrics:
    """What ``/metrics`` shows; ``observe`` may be called on any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._restored = Counter(
            "surefoot_restored_tokens",
            "Prompt tokens whose state was restored, by the tier it came from.",
            ["kind", "source"],
            registry=registry,
        )
        self._computed = Counter(
            "surefoot_computed_tokens",
            "Prompt tokens whose state was computed.",
            ["kind"],
            registry=registry,
        )
        self._committed = Counter(
            "surefoot_committed_tokens",
            "Tokens whose state was added to the cache.",
            ["kind"],
            registry=registry,
        )
        self._misses = Counter(
            "surefoot_misses",
            "Turns whose restore did not stand at the limit, by reason.",
            ["reason"],
            registry=registry,
        )
        self._media = Counter(
            "surefoot_media",
            "Media items of turns' prompts, by whether the vision tower was spared.",
            ["feature_hit"],
            registry=registry,
        )
        self._turns = Counter(
            "surefoot_turns", "Turns that ended, by how.", ["kind", "finish"], registry=registry
        )
        self._ttft = Histogram(
            "surefoot_ttft_seconds",
            "From the moment a request was queued to its first token.",
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self._restore = Histogram(
            "surefoot_restore_seconds",
            "What restores took that brought something.",
            buckets=RESTORE_BUCKETS,
            registry=registry,
        )

        self._looked = Histogram(
            "surefoot_media_seconds",
            "What decoding images and running the vision tower took, in turns that had any.",
            buckets=MEDIA_BUCKETS,
            registry=registry,
        )

    def observe(self, receipt: Receipt) -> None:
        """Count one receipt."""
        kind = receipt.kind.value
        self._turns.labels(kind, receipt.finish.value).inc()
        self._computed.labels(kind).inc(receipt.computed_tokens)
        self._committed.labels(kind).inc(receipt.committed_tokens)
        for source, tokens in receipt.sources.items():
            self._restored.labels(kind, source).inc(tokens)
        if receipt.restored_tokens:
            self._restore.observe(receipt.timings_ms.restore / 1000)
        if receipt.kind is Kind.IDLE:
            return
        for item in receipt.media:
            self._media.labels(str(item.feature_hit).lower()).inc()
        if receipt.media:
            self._looked.observe(receipt.timings_ms.media / 1000)
        if receipt.miss_reason is not None:
            self._misses.labels(receipt.miss_reason.value).inc()
        if receipt.timings_ms.ttft is not None:
            self._ttft.observe(receipt.timings_ms.ttft / 1000)

    def text(self, status: Mapping[str, Any] | None) -> bytes:
        """Return everything as Prometheus text; ``status`` is the backend's, None while loading."""
        gauges = CollectorRegistry()
        gauges.register(_Gauges(status or {}))
        return generate_latest(self._registry) + generate_latest(gauges)


class _Gauges(Collector):
    """Every number of a status, named by its path; figures of a tier carry it as a label."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for path, value in _numbers(self._status, ()):
            tier = path[1] if path[0] in BY_TIER and len(path) > 2 else None
            words = (BY_TIER[path[0]], *path[2:]) if tier else path
            name = "surefoot_" + re.sub(r"[^a-z0-9_]", "_", "_".join(words).lower())
            if name not in families:
                shown = ".".join((path[0], "*", *path[2:]) if tier else path)
                labels = ["tier"] if tier else []
                families[name] = GaugeMetricFamily(name, f"'{shown}' of /v1/cache.", labels=labels)
            families[name].add_metric([tier] if tier else [], value)
        yield from families.values()


def _numbers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield every number with its path; a tier's ``state`` is ``up``: 1 or 0."""
    match value:
        case Mapping():
            for key, one in value.items():
                yield from _numbers(one, (*path, str(key)))
        case "up" | "down" if path[-1] == "state":
            yield (*path[:-1], "up"), float(value == "up")
        case bool() | int() | float():
            yield path, float(value)
        case _:
            return
