"""``surefoot serve``: wire the rooms together, load the model while the port answers, and drain.

The port is bound first, so that one in use is an error before a model is loaded; ``/health`` says
503 until the model is ready. SIGTERM and Ctrl-C let running turns end, cancel what is left and wait
for the store, all within ``DRAIN_S``.
"""

import asyncio
import errno
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from surefoot import identity, settings
from surefoot.cache import Cache, check_store, open_cache
from surefoot.cache.origins import note_model
from surefoot.chat import ImageLimits, load_chat
from surefoot.cli.evidence_commands import shared_settings
from surefoot.cli.folders import cache_folder
from surefoot.cli.memory import bound_heaps, set_aside_loaded
from surefoot.engine import Engine
from surefoot.errors import SetupError
from surefoot.receipt import Receipt
from surefoot.scheduler import Limits, Scheduler, Turns
from surefoot.server import Fetcher, Metrics, ServerConfig, create_app, protocol_for
from surefoot.server import Limits as WireLimits
from surefoot.turn import Serving
from surefoot.turn.audit import Audit, outcome

TURNS_STOP_S = 3  # seconds for running answers to end by themselves, and again to be cut short
SERVER_STOP_S = 1  # seconds for the last bytes of open connections
# A red square of 64 x 64 pixels, so that a model that sees can be tried at once.
RED_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQMAAACQp+OdAAAAA1BMVEX/AAAZ"
    "4gk3AAAAD0lEQVR42mNgGAWjgHwAAAJAAAHgTR1EAAAAAElFTkSuQmCC"
)
log = logging.getLogger("surefoot")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The flags of ``surefoot serve``, parsed; ``settings`` says why each default is what it is."""

    model: str
    host: str
    port: int
    store: Path | None
    ram_bytes: int
    ssd_bytes: int
    free_floor_bytes: int
    write_budget: int  # bytes an hour; 0: no limit
    feature_ram_bytes: int
    feature_ssd_bytes: int
    block_tokens: int | None  # None: the model's own
    threads: int
    dtype: str | None
    device: str
    api_keys: tuple[str, ...]
    running: int
    queued: int
    live_bytes: int
    client_requests: int
    stall_s: float
    idle: int
    audit_share: float
    restore_floor_s: float
    io_threads: int
    queue_bytes: int
    fetches: bool
    images: int
    image_bytes: int
    image_pixels: int

    def described(self) -> dict[str, Any]:
        """Return what may be shared of it: no path, no key, no address."""
        return shared_settings(asdict(self))


@dataclass(slots=True)
class Live:
    """What the server's backend points at: empty while loading, then whole."""

    scheduler: Scheduler | None = None
    cache: Cache | None = None
    context_tokens: int = 0
    takes_images: bool = False
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def turns(self) -> Turns | None:
        """The scheduler, once the model can answer."""
        return self.scheduler

    def status(self) -> dict[str, Any]:
        """Return what ``/v1/cache`` shows."""
        assert self.cache is not None
        assert self.scheduler is not None
        return self.cache.status() | self.scheduler.status()

    def key_id(self, api_key: str) -> identity.KeyId:
        """Name an API key with the store's secret."""
        assert self.cache is not None
        return identity.key_id(self.cache.secret, api_key)


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would raise them again before the store is drained."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


def serve_forever(options: ServeOptions) -> int:
    """Serve until told to stop; return the exit code.

    Raises:
        SetupError: the port, the store or the model cannot be used.
        EngineError: the model cannot be run.
    """
    bound_heaps()
    logging.basicConfig(format="surefoot: %(message)s", stream=sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if options.store is not None:
        check_store(options.store)
    with _bind(options.host, options.port) as listener:
        return asyncio.run(_serve(options, listener))


async def _serve(options: ServeOptions, listener: socket.socket) -> int:
    live = Live()
    host, port = listener.getsockname()[:2]
    config = ServerConfig(
        model=options.model,
        created=int(time.time()),
        wall_clock=time.time,
        host=options.host,
        api_keys=options.api_keys,
        key_id=live.key_id,
        random_seed=lambda: secrets.randbits(63),
        random_id=lambda: secrets.token_hex(12),
        limits=WireLimits(
            images=options.images,
            image_bytes=options.image_bytes,
            client_requests=options.client_requests,
            stall_s=options.stall_s,
        ),
        fetcher=Fetcher() if options.fetches else None,
    )
    app = create_app(config, live)
    server = _Server(
        uvicorn.Config(
            app,
            http=protocol_for(config.limits),
            ws="none",
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=SERVER_STOP_S,
        )
    )
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    print(f"surefoot: {url} answers 503 until {options.model} is loaded", flush=True)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = loop.run_in_executor(None, _load, options, live)
    stopping = asyncio.create_task(told.wait())
    first: set[asyncio.Future[Any]] = {serving, loading, stopping}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        # Loading cannot be interrupted, and there is nothing yet that could be lost.
        os._exit(0)
    try:
        loading.result()
        set_aside_loaded()
        print(ready_message(options.model, url, sees=live.takes_images), flush=True)
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping: running answers get %d s to end", TURNS_STOP_S)
        # Before the connections are closed, so that an answer cut short is an error with a body.
        await loop.run_in_executor(None, _stop_turns, live)
    finally:
        server.should_exit = True
        await serving
        _drain(live)
    return 0


def _load(options: ServeOptions, live: Live) -> None:
    """Load the model and open the store; afterwards ``live`` can answer."""
    # Importing torch takes seconds: what can be refused without it is refused before.
    from surefoot.engine.hf import load_engine  # noqa: PLC0415
    from surefoot.engine.hf.builtin import default_block_tokens  # noqa: PLC0415

    started = time.monotonic()
    engine = load_engine(
        options.model,
        threads=options.threads,
        block_tokens=options.block_tokens or default_block_tokens(options.model),
        dtype=options.dtype,
        attention=None,
        device=options.device,
        cache_folder=cache_folder(),
        progress=log.info,
        clock=time.monotonic,
    )
    images = ImageLimits(
        bytes=options.image_bytes, pixels=options.image_pixels, images=options.images
    )
    chat = load_chat(engine.tokenizer_source, limits=images, sees=engine.features is not None)
    if engine.unsupported is not None:
        log.warning("served without a cache: %s", engine.unsupported)
    cache = _open_cache(options, engine)
    serving = Serving(engine, chat, cache, time.monotonic, options.restore_floor_s)
    limits = Limits(
        running=options.running,
        queued=options.queued,
        live_bytes=options.live_bytes,
        idle=options.idle,
        audit_share=options.audit_share,
    )

    def on_receipt(receipt: Receipt) -> None:
        live.metrics.observe(receipt)
        log.info("%s", _line(receipt))

    scheduler = Scheduler(
        serving, limits, on_receipt=on_receipt, on_bug=_log_bug, on_audit=_log_audit
    )
    scheduler.start()
    live.cache, live.context_tokens = cache, engine.context_tokens
    live.takes_images = chat.takes_images
    live.scheduler = scheduler
    log.info(
        "model %s, context %d tokens, store %s, ready in %.1f s",
        engine.model.hex()[:16],
        engine.context_tokens,
        options.store or "off",
        time.monotonic() - started,
    )


def _open_cache(options: ServeOptions, engine: Engine) -> Cache:
    """Open the store for a model, and note there what the model is."""
    cache = open_cache(
        model=engine.model,
        groups=engine.groups,
        store=options.store,
        ram_bytes=options.ram_bytes,
        ssd_bytes=options.ssd_bytes,
        feature_schema=engine.features,
        feature_ram_bytes=options.feature_ram_bytes,
        feature_ssd_bytes=options.feature_ssd_bytes,
        free_floor_bytes=options.free_floor_bytes,
        write_budget=options.write_budget,
        io_threads=options.io_threads,
        queue_bytes=options.queue_bytes,
        clock=time.monotonic,
        wall_clock=time.time,
        random_bytes=secrets.token_bytes,
        described=options.described(),
    )
    if options.store is not None:
        note_model(
            options.store,
            engine.model,
            ingredients=engine.ingredients,
            loaded_as={
                "model": _found_again(options.model),
                "dtype": options.dtype,
                "threads": options.threads,
                "block_tokens": engine.block_tokens,
                "device": options.device,
            },
        )
    return cache


def _found_again(model: str) -> str:
    """Return the MODEL argument as a later command, in another folder, can use it."""
    path = Path(model)
    return str(path.resolve()) if path.exists() else model


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise SetupError(f"--port {port} is not a port: it must be from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise SetupError(
            f"cannot listen: port {port} on {host} {why}; give another --port"
        ) from error
    return listener


def _stop_turns(live: Live) -> None:
    assert live.scheduler is not None
    live.scheduler.stop(TURNS_STOP_S)


def _drain(live: Live) -> None:
    """Wait for the store, as long as is left of ``DRAIN_S``, and say how it ended."""
    if live.cache is None:
        return
    left_s = settings.DRAIN_S.default - 2 * TURNS_STOP_S - SERVER_STOP_S
    written = live.cache.drain(left_s)
    unwritten = live.cache.status()["pending_writes"]
    live.cache.close()
    log.info("stopped; %s", "nothing is left to write" if written else f"{unwritten} not written")


def _log_bug(error: Exception) -> None:
    log.error("%s", "".join(traceback.format_exception(error)))


def _log_audit(account: Audit) -> None:
    verdicts = Counter(account.verdicts.values())
    found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    log.info(
        "audit %s: %d tokens computed, blocks: %s",
        account.chain[-1].name.hex()[:16],
        account.computed_tokens,
        found or "none",
    )
    if account.finding is not None:
        log.warning("audit: %s; %s", account.finding, outcome(account))


def _line(receipt: Receipt) -> str:
    """Return a turn in one line, without a word of its prompt."""
    sources = " + ".join(f"{tokens} from {tier}" for tier, tokens in receipt.sources.items())
    ttft = receipt.timings_ms.ttft
    return (
        f"{receipt.kind} {receipt.id}: {receipt.prompt_tokens} prompt tokens = "
        f"{sources or 'none restored'} + {receipt.computed_tokens} computed"
        f"{f' ({receipt.miss_reason})' if receipt.miss_reason else ''}, "
        f"{'no first token' if ttft is None else f'TTFT {ttft:.0f} ms'}, "
        f"{receipt.finish} after {receipt.timings_ms.total / 1000:.1f} s"
    )


def ready_message(model: str, url: str, *, sees: bool) -> str:
    """Return what a person can try at once: a curl, with an image for a model that sees."""
    content: Any = "Say hello."
    if sees:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED_PNG}"}}
        content = [image, {"type": "text", "text": "One word: what color?"}]
    message = {"role": "user", "content": content}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 60})
    return (
        f"surefoot: {model} is ready; try\n\n"
        f"  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -d '{body}'\n"
    )
