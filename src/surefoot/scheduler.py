"""Many turns, one engine thread, and idle work when nothing waits.

The thread takes one unit (a prefill block or a decoded token) from each running turn in turn, so a
long prefill delays another turn's next token by one block and no more. Everything that computes
happens here: forward passes, restores into a model, and the closing of generators, so no two
computations ever overlap.

After an answer, the conversation's expected next prefix is computed and committed as idle work. It
runs only while no turn is running or queued, stops at the end of a unit when one comes, and starts
over later from what it had committed.

What is stored is audited when there is not even idle work, in the share of time that turns earned
(``turn/audit_share.py``). An audit stops as idle work does, and holds no more than it may.

What sequences hold is bounded: a turn says what it needs before it holds anything, and waits,
without a unit, until that fits beside what running turns said. Those who wait are served in the
order in which they asked, so that small turns never keep a large one out; one alone always runs.
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
    Needs,
    Serving,
    Steps,
    TokenText,
    TurnRequest,
    Unit,
    idle,
    turn,
)
from surefoot.turn.audit import Audit, audit
from surefoot.turn.audit_share import AuditShare
from surefoot.turn.evidence import evidence_of

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
        """Return what a person can wait on: turns ``running``, ``waiting`` for memory and
        ``queued``, ``idle_work``, audits due or running as ``auditing``, and ``live_bytes``
        that turns may hold by now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may wait and run at once."""

    running: int  # those that wait for memory count: they hold what their images were made into
    queued: int
    live_bytes: int  # that sequences hold, each counted as large as it may grow
    idle: int  # conversations whose next prefix may wait to be computed; 0 turns idle work off
    idle_media_bytes: int = 2**28  # of media items that conversations hold while they wait
    audit_share: float = 0.0  # tokens that audits may compute for each that turns consumed
    audit_media_bytes: int = 2**27  # of the last turns' items, for audits: five large pictures


@dataclass(slots=True, eq=False)
class _Job:
    ledger: Ledger
    deliver: Deliver
    wake: threading.Condition
    cancelled: bool = False
    steps: Steps | None = None
    needs: int = 0  # bytes it asked for
    holds: int = 0  # bytes it was given: 0, or what it asked for
    asked_at: float = 0.0

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


class _AuditJob:
    """Whatever chain is to be audited next."""


@dataclass(slots=True)
class _Work:
    queued: deque[_Job] = field(default_factory=deque)
    running: deque[_Job] = field(default_factory=deque)
    waiting: deque[_Job] = field(default_factory=deque)  # for memory, in the order they asked
    idle: deque[_IdleJob] = field(default_factory=deque)
    idling: bool = False
    auditing: bool = False
    idle_holds: int = 0
    stopping: bool = False

    @property
    def begun(self) -> int:
        """Turns that were taken from the queue and have not ended."""
        return len(self.running) + len(self.waiting)

    @property
    def turns_hold(self) -> int:
        """Bytes that turns may hold."""
        return sum(job.holds for job in self.running)


class Scheduler:
    """Runs turns on one engine thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        serving: Serving,
        limits: Limits,
        *,
        on_receipt: Callable[[Receipt], None],
        on_bug: Callable[[Exception], None],
        on_audit: Callable[[Audit], None] = lambda account: None,
    ) -> None:
        self._serving = serving
        self._limits = limits
        self._on_receipt = on_receipt
        self._on_bug = on_bug
        self._on_audit = on_audit
        self._share = AuditShare(
            serving, share=limits.audit_share, media_bytes=limits.audit_media_bytes
        )
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
        """Return how many turns run and wait, what they may hold, and what idle work is left."""
        with self._wake:
            return {
                "running": len(self._work.running),
                "waiting": len(self._work.waiting),
                "queued": len(self._work.queued),
                "live_bytes": self._work.turns_hold + self._work.idle_holds,
                "idle_work": len(self._work.idle) + self._work.idling,
                "auditing": int(self._work.auditing or self._share.due),
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
            self._wake.wait_for(lambda: not (self._work.queued or self._work.begun), timeout_s)
            for job in (*self._work.queued, *self._work.waiting, *self._work.running):
                job.cancelled = True
            self._wake.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, _Job):
                self._unit(job)
            elif isinstance(job, _IdleJob):
                self._idle(job)
            else:
                self._audit()

    def _next(self) -> "_Job | _IdleJob | _AuditJob | None":
        """Wait for work: a running turn's next unit, else idle work, else an audit."""
        work = self._work
        with self._wake:
            while True:
                if (left := self._left_in_line()) is not None:
                    return left
                while work.queued and work.begun < self._limits.running:
                    work.running.append(work.queued.popleft())
                self._admit()
                if work.running:
                    work.running.rotate(-1)
                    return work.running[-1]
                if work.stopping:
                    return None
                if work.idle:
                    work.idling = True
                    return work.idle.popleft()
                if self._share.due:
                    work.auditing = True
                    return _AuditJob()
                self._wake.wait()

    def _left_in_line(self) -> _Job | None:
        """Take out a turn that was cancelled before its time came; it ends like a running one."""
        for line in (self._work.waiting, self._work.queued):
            for job in line:
                if job.cancelled:
                    line.remove(job)
                    if line is self._work.waiting:
                        self._waited(job)
                    self._work.running.append(job)
                    return job
        return None

    def _admit(self) -> None:
        """Let those who wait for memory run, in their order, up to the first that must wait on."""
        work = self._work
        while work.waiting:
            held, needs = work.turns_hold, work.waiting[0].needs
            if held and held + needs > self._limits.live_bytes:
                return
            job = work.waiting.popleft()
            job.holds = needs
            self._waited(job)
            work.running.append(job)

    def _waited(self, job: _Job) -> None:
        job.ledger.waited_s += self._serving.clock() - job.asked_at

    def _unit(self, job: _Job) -> None:
        """Advance one turn by one unit; a turn that ended leaves the running ones."""
        event = self._advance(job)
        while isinstance(event, Needs):
            if not self._has_room(job, event):
                return
            event = self._advance(job)
        if isinstance(event, Done | Failed):
            self._finish(job, event)
        elif event is not None:
            job.deliver(event)

    def _advance(self, job: _Job) -> Unit:
        if job.cancelled:
            return self._cancelled(job)
        try:
            job.steps = job.steps or turn(job.ledger)
            return next(job.steps)
        except RequestError as error:
            return Failed(error, job.ledger.seal(Finish.ERROR))
        except Exception as error:  # noqa: BLE001  the thread outlives any one turn
            self._on_bug(error)
            return Failed(error, job.ledger.seal(Finish.ERROR))

    def _has_room(self, job: _Job, asked: Needs) -> bool:
        """Give a turn what it needs, or put it at the end of those who wait for memory."""
        with self._wake:
            job.needs, job.holds, job.asked_at = asked.nbytes, 0, self._serving.clock()
            self._work.running.remove(job)
            self._work.waiting.append(job)
            self._admit()
            return job in self._work.running

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
                self._share.earn(job.ledger)
            self._work.running.remove(job)
            self._wake.notify_all()
        if event.receipt is not None:
            self._on_receipt(event.receipt)
            self._serving.cache.remember(event.receipt, evidence_of(job.ledger))
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
        interrupted = self._spare(idle(ledger, job.answer), ledger)
        with self._wake:
            self._work.idling = False
            if interrupted and not self._work.stopping:
                self._work.idle.appendleft(job)
            self._wake.notify_all()

    def _audit(self) -> None:
        """Audit the chain that comes next, until it is done or a turn wants the thread."""
        account = self._share.take()
        if account is not None:
            interrupted = self._spare(audit(self._serving, account))
            self._share.spend(account, interrupted=interrupted)
            if not interrupted:
                self._on_audit(account)
        with self._wake:
            self._work.auditing = False
            self._wake.notify_all()

    def _spare(self, steps: Steps, ledger: Ledger | None = None) -> bool:
        """Run what nobody asked for; return whether a turn that came ended it."""
        interrupted = False
        try:
            for event in steps:
                if isinstance(event, Done) and ledger is not None:
                    self._on_receipt(event.receipt)
                    self._serving.cache.remember(event.receipt, evidence_of(ledger))
                with self._wake:
                    if isinstance(event, Needs):
                        if event.nbytes > self._limits.live_bytes:
                            break  # only what somebody asked for may hold more
                        self._work.idle_holds = event.nbytes
                    interrupted = bool(self._work.queued) or self._work.stopping
                if interrupted:
                    break
            steps.close()
        except Exception as error:  # noqa: BLE001  nobody asked for this work
            self._on_bug(error)
        with self._wake:
            self._work.idle_holds = 0
        return interrupted


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
