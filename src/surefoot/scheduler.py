"""Many turns, one engine thread, and idle work when nothing waits.

The thread takes one unit (a prefill block or a decoded token) from each running turn in turn, so a
long prefill delays another turn's next token by one block and no more. Everything that computes
happens here: forward passes, restores into a model, and the closing of generators, so no two
computations ever overlap.

After an answer, the conversation's expected next prefix is computed and committed as idle work. It
runs only while no turn is running or queued, stops at the end of a unit when one comes, and starts
over later from what it had committed.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from surefoot.chat.request import ChatInput
from surefoot.engine import Sampling
from surefoot.errors import CapacityError, RequestError
from surefoot.prompt import MediaItem
from surefoot.receipt import Finish, Kind, Receipt
from surefoot.turn import (
    CacheMode,
    Delta,
    Done,
    Event,
    Failed,
    Ledger,
    Serving,
    Steps,
    TokenText,
    TurnRequest,
    Unit,
    idle,
    turn,
)

Deliver = Callable[[Event], None]


class Ticket(Protocol):
    """A queued or running turn."""

    def cancel(self) -> None:
        """Stop the turn at the end of its current unit; callable from any thread, idempotent."""
        ...


class Turns(Protocol):
    """What the server needs of a scheduler."""

    def submit(self, request: TurnRequest, deliver: Deliver) -> Ticket:
        """Queue a turn; ``deliver`` is called on the engine thread: Deltas, then Done or Failed.

        Raises:
            CapacityError: the queue is full, or the server is stopping.
        """
        ...

    def status(self) -> dict[str, Any]:
        """Return counts a person can wait on: ``running``, ``queued``, ``idle_work``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may wait and run at once."""

    running: int  # each running turn holds its own state in memory
    queued: int
    idle: int  # conversations whose next prefix may wait to be computed; 0 turns idle work off
    idle_media_bytes: int = 2**28  # of media items that conversations hold while they wait


@dataclass(slots=True, eq=False)
class _Job:
    ledger: Ledger
    deliver: Deliver
    wake: threading.Condition
    cancelled: bool = False
    steps: Steps | None = None

    def cancel(self) -> None:
        with self.wake:
            self.cancelled = True
            self.wake.notify_all()


@dataclass(frozen=True, slots=True)
class _IdleJob:
    request: TurnRequest
    answer: str
    media: tuple[MediaItem, ...]  # what the turn made of its images: none is decoded twice

    @property
    def media_bytes(self) -> int:
        return sum(len(item.data) for item in self.media)


@dataclass(slots=True)
class _Work:
    queued: deque[_Job] = field(default_factory=deque)
    running: deque[_Job] = field(default_factory=deque)
    idle: deque[_IdleJob] = field(default_factory=deque)
    idling: bool = False
    stopping: bool = False


class Scheduler:
    """Runs turns on one engine thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        serving: Serving,
        limits: Limits,
        *,
        on_receipt: Callable[[Receipt], None],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._serving = serving
        self._limits = limits
        self._on_receipt = on_receipt
        self._on_bug = on_bug
        self._wake = threading.Condition()
        self._work = _Work()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def submit(self, request: TurnRequest, deliver: Deliver) -> Ticket:
        """Queue a turn; see ``Turns.submit``."""
        ledger = Ledger(request, self._serving, self._serving.clock())
        job = _Job(ledger, deliver, self._wake)
        with self._wake:
            if self._work.stopping:
                raise CapacityError("the server is stopping; try another or try again later")
            if len(self._work.queued) >= self._limits.queued:
                raise CapacityError(
                    f"{len(self._work.queued)} requests are waiting, the most this server queues"
                )
            self._work.queued.append(job)
            self._wake.notify_all()
        return job

    def status(self) -> dict[str, Any]:
        """Return how many turns run and wait, and how much idle work is left."""
        with self._wake:
            return {
                "running": len(self._work.running),
                "queued": len(self._work.queued),
                "idle_work": len(self._work.idle) + self._work.idling,
            }

    def stop(self, timeout_s: float) -> bool:
        """Refuse new turns, let the running ones end, and cancel what is left after the timeout.

        Returns:
            Whether the engine thread has ended.
        """
        with self._wake:
            self._work.stopping = True
            self._work.idle.clear()
            self._wake.notify_all()
            self._wake.wait_for(lambda: not (self._work.queued or self._work.running), timeout_s)
            for job in (*self._work.queued, *self._work.running):
                job.cancelled = True
            self._wake.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, _Job):
                self._unit(job)
            else:
                self._idle(job)

    def _next(self) -> "_Job | _IdleJob | None":
        """Wait for work: a running turn's next unit, or idle work when no turn wants the thread."""
        work = self._work
        with self._wake:
            while True:
                while work.queued and len(work.running) < self._limits.running:
                    work.running.append(work.queued.popleft())
                if work.running:
                    work.running.rotate(-1)
                    return work.running[-1]
                if work.stopping:
                    return None
                if work.idle:
                    work.idling = True
                    return work.idle.popleft()
                self._wake.wait()

    def _unit(self, job: _Job) -> None:
        """Advance one turn by one unit; a turn that ended leaves the running ones."""
        event: Unit
        if job.cancelled:
            event = self._cancelled(job)
        else:
            try:
                job.steps = job.steps or turn(job.ledger)
                event = next(job.steps)
            except RequestError as error:
                event = Failed(error, job.ledger.seal(Finish.ERROR))
            except Exception as error:  # noqa: BLE001  the thread outlives any one turn
                self._on_bug(error)
                event = Failed(error, job.ledger.seal(Finish.ERROR))
        if isinstance(event, Done | Failed):
            self._finish(job, event)
        elif event is not None:
            job.deliver(event)

    def _cancelled(self, job: _Job) -> Done | Failed:
        if job.steps is not None:
            job.steps.close()
        receipt = job.ledger.seal(Finish.CANCELLED)
        if receipt is None:
            return Failed(CapacityError("the request was cancelled before it began"), None)
        return Done(receipt, job.ledger.completion_tokens)

    def _finish(self, job: _Job, event: Done | Failed) -> None:
        # Idle work is listed before the answer ends, so whoever saw the end can wait for it.
        with self._wake:
            if isinstance(event, Done):
                self._expect_next_turn(job.ledger, event.receipt)
            self._work.running.remove(job)
            self._wake.notify_all()
        if event.receipt is not None:
            self._on_receipt(event.receipt)
        job.deliver(event)

    def _expect_next_turn(self, ledger: Ledger, receipt: Receipt) -> None:
        request, work = ledger.request, self._work
        wanted = receipt.finish in (Finish.STOP, Finish.LENGTH) and request.mode.writes
        if not wanted or not isinstance(request.input, ChatInput) or work.stopping:
            return
        if self._serving.engine.unsupported is not None or self._limits.idle == 0:
            return
        work.idle.append(_IdleJob(request, ledger.text, tuple(ledger.media)))
        most = self._limits.idle_media_bytes
        while (
            len(work.idle) > self._limits.idle or sum(one.media_bytes for one in work.idle) > most
        ):
            work.idle.popleft()  # the oldest conversation is the least likely to come back first

    def _idle(self, job: _IdleJob) -> None:
        """Run idle work until it is done or a turn wants the thread."""
        request = replace(job.request, id=f"idle-{job.request.id}", mode=CacheMode.USE)
        ledger = Ledger(request, self._serving, self._serving.clock(), kind=Kind.IDLE)
        ledger.media.extend(job.media)
        steps = idle(ledger, job.answer)
        interrupted = False
        try:
            for event in steps:
                if isinstance(event, Done):
                    self._on_receipt(event.receipt)
                with self._wake:
                    interrupted = bool(self._work.queued) or self._work.stopping
                if interrupted:
                    break
            steps.close()
        except Exception as error:  # noqa: BLE001  nobody asked for this work
            self._on_bug(error)
        with self._wake:
            self._work.idling = False
            if interrupted and not self._work.stopping:
                self._work.idle.appendleft(job)
            self._wake.notify_all()


__all__ = [
    "CacheMode",
    "Delta",
    "Done",
    "Event",
    "Failed",
    "Limits",
    "Sampling",
    "Scheduler",
    "Ticket",
    "TokenText",
    "TurnRequest",
    "Turns",
]
