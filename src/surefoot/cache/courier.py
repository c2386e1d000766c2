"""The I/O threads: a bounded number of them, and a bounded queue. Nobody else here starts one.

Two lanes, each a queue and its threads. The read lane serves a restore, which waits with a
deadline; the write lane has one thread, so that writes and deletions of a key keep their order.

A thread that does not return in time is left behind: its job's result is discarded whenever it
comes, the lane starts another thread in its place (up to ``SPARE_THREADS`` more than it should
have), and the count of stalled ones is there to see. Threads are daemons: a medium that never
answers cannot keep the process from ending.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from threading import Condition, Thread, current_thread
from typing import Generic, NamedTuple, TypeVar

from surefoot.errors import CacheFault, TierError

SPARE_THREADS = 4  # replacements for stalled threads, per lane
WRITE_STALL_S = 30.0  # a write that takes longer is left behind
DOWN_S = 30.0  # how long a tier with a stalled read is planned around
JOIN_S = 5.0  # how long closing waits for a job that runs

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


class Job:
    """One piece of I/O, and how it ended."""

    def __init__(self, run: Callable[[], None], nbytes: int) -> None:
        self.run = run
        self.nbytes = nbytes
        self.started_at: float | None = None
        self.left_behind = False
        self.urgent = False


class Lane:
    """A queue of jobs and the threads that run them."""

    def __init__(
        self, name: str, *, threads: int, queue_bytes: int, clock: Callable[[], float]
    ) -> None:
        assert threads > 0, threads
        self._name = name
        self._threads = threads
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._changed = Condition()
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._waiting_bytes = 0  # of jobs that are queued or run
        self._stalled = 0
        self._stalls = 0
        self._live: list[Thread] = []
        self._closed = False
        self._bug: BaseException | None = None

    @property
    def stalls(self) -> int:
        """How many threads were left behind so far."""
        return self._stalls

    @property
    def stalled(self) -> int:
        """How many threads are left behind right now."""
        return self._stalled

    @property
    def stuck(self) -> bool:
        """Whether every thread this lane may have is left behind."""
        with self._changed:
            return self._stalled >= self._threads + SPARE_THREADS

    def submit(self, job: Job, *, urgent: bool = False) -> bool:
        """Queue a job; false if the queue is full, the lane stuck or closed.

        One job is always taken by an empty queue, however large, and one without bytes by a full.
        Urgent ones run before those that are not, in their own order.
        """
        with self._changed:
            self._raise_bug()
            self._leave_behind_slow(WRITE_STALL_S)
            waiting = self._waiting_bytes
            full = job.nbytes and waiting and waiting + job.nbytes > self._queue_bytes
            if full or self._closed or self._stalled >= self._threads + SPARE_THREADS:
                return False
            if urgent:
                job.urgent = True
                self._queue.insert(sum(one.urgent for one in self._queue), job)
            else:
                self._queue.append(job)
            self._waiting_bytes += job.nbytes
            self._staff()
            self._changed.notify_all()
            return True

    def leave_behind(self, jobs: list[Job]) -> int:
        """Drop the jobs that did not start, and leave the running ones behind; return how many."""
        with self._changed:
            self._raise_bug()
            left = [job for job in jobs if job in self._running]
            for job in jobs:
                with suppress(ValueError):
                    self._queue.remove(job)
                    self._waiting_bytes -= job.nbytes
            self._abandon(left)
            return len(left)

    def pending(self) -> int:
        """Return the jobs that are queued or running, those left behind included."""
        with self._changed:
            return len(self._queue) + len(self._running) + self._stalled

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; false if that takes longer than ``timeout_s``."""
        with self._changed:
            idle = self._changed.wait_for(
                lambda: self._bug or not (self._queue or self._running or self._stalled),
                timeout_s,
            )
            self._raise_bug()
            return bool(idle)

    def close(self) -> int:
        """Take no more jobs, drop the queued ones and wait for running ones; return the dropped."""
        with self._changed:
            self._closed = True
            dropped = len(self._queue)
            self._queue.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, JOIN_S)
            threads = [] if self._running else list(self._live)
        for thread in threads:
            thread.join(JOIN_S if not self._stalled else 0)
        return dropped

    def _staff(self) -> None:
        # Called with the lock held. A stalled thread is replaced only when there is work for it.
        wanted = min(self._threads, len(self._queue) + len(self._running))
        wanted = min(wanted + self._stalled, self._threads + SPARE_THREADS)
        while len(self._live) < wanted:
            thread = Thread(target=self._work, name=f"surefoot-{self._name}", daemon=True)
            self._live.append(thread)
            thread.start()

    def _work(self) -> None:
        job: Job | None = None
        while True:
            with self._changed:
                if job is not None:
                    self._finished(job)
                if not self._wait_for_job():
                    self._live.remove(current_thread())
                    self._changed.notify_all()
                    return
                job = self._queue.popleft()
                job.started_at = self._clock()
                self._running.append(job)
            try:
                job.run()
            except BaseException as bug:  # noqa: BLE001 - raised again on the thread that asks next
                with self._changed:
                    self._bug = bug

    def _finished(self, job: Job) -> None:
        if job.left_behind:
            self._stalled -= 1
        else:
            self._running.remove(job)
            self._waiting_bytes -= job.nbytes
        self._changed.notify_all()

    def _wait_for_job(self) -> bool:
        # False when this thread is one too many (its replacement came) or the lane is closed.
        while not self._queue:
            if self._closed or len(self._live) - self._stalled > self._threads:
                return False
            self._changed.wait()
        return not self._closed and len(self._live) - self._stalled <= self._threads

    def _leave_behind_slow(self, limit_s: float) -> None:
        now = self._clock()
        self._abandon(
            [
                job
                for job in self._running
                if job.started_at is not None and now - job.started_at > limit_s
            ]
        )

    def _abandon(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.left_behind = True
            self._running.remove(job)
            self._waiting_bytes -= job.nbytes
            self._stalled += 1
            self._stalls += 1
        if jobs:
            if self._queue:
                self._staff()
            self._changed.notify_all()

    def _raise_bug(self) -> None:
        if self._bug is not None:
            bug, self._bug = self._bug, None
            raise bug


class Lanes(NamedTuple):
    """The courier's two lanes."""

    reads: Lane
    writes: Lane


class Batch(Generic[Key, Result]):
    """Reads that belong together: submitted at once, awaited with one deadline."""

    def __init__(self, lane: Lane, clock: Callable[[], float]) -> None:
        self._lane = lane
        self._clock = clock
        self._arrived = Condition()
        self._results: dict[Key, tuple[float, Result | CacheFault]] = {}  # when, and what
        self._jobs: dict[Key, Job] = {}
        self._bugs: dict[Key, BaseException] = {}
        self._open = True
        self.stalled = 0

    def submit(self, key: Key, read: Callable[[], Result]) -> bool:
        """Queue a read; false if no thread could take it."""
        job = Job(lambda: self._run(key, read), nbytes=0)
        with self._arrived:
            self._jobs[key] = job
        if self._lane.submit(job):
            return True
        with self._arrived:
            del self._jobs[key]
        return False

    def wait(self, deadline: float) -> Mapping[Key, Result | CacheFault]:
        """Return what arrived by ``deadline``; the rest is dropped or left behind.

        What a read raised that is no ``CacheFault`` is a bug, and is raised here.
        """
        with self._arrived:
            # Waiting is in real time; a clock that stands still must not make it endless.
            left_s = max(deadline - self._clock(), 0.0)
            self._arrived.wait_for(self._done, left_s)
            self._open = False
            ended = self._results.keys() | self._bugs.keys()
            late = [job for key, job in self._jobs.items() if key not in ended]
        self.stalled = self._lane.leave_behind(late) if late else 0
        for bug in self._bugs.values():
            raise bug
        return {key: result for key, (at, result) in self._results.items() if at <= deadline}

    def _done(self) -> bool:
        return bool(self._bugs) or len(self._results) == len(self._jobs)

    def _run(self, key: Key, read: Callable[[], Result]) -> None:
        try:
            result: Result | CacheFault = read()
        except CacheFault as fault:
            result = fault
        except BaseException as bug:
            with self._arrived:
                if not self._open:
                    raise  # nobody waits: the lane shows it to whoever asks next
                self._bugs[key] = bug
                self._arrived.notify_all()
            return
        with self._arrived:
            if self._open:
                self._results[key] = (self._clock(), result)
                self._arrived.notify_all()


def ask(
    lane: Lane, clock: Callable[[], float], run: Callable[[], Result], *, deadline: float
) -> Result | CacheFault:
    """Run one question on a lane, and wait until ``deadline`` for the answer; a fault is returned.

    So a thread that must not wait for a medium asks one: the inventory's file lies on a disk that
    may stall. A late answer goes nowhere, and its thread is left behind, so ``run`` must only read.
    Never called from a job of the same lane, which would wait for itself.
    """
    question: Batch[None, Result] = Batch(lane, clock)
    if not question.submit(None, run):
        return TierError("no I/O thread is free")
    for answer in question.wait(deadline).values():
        return answer
    return TierError("the tier did not answer in time")


def finish(run: Callable[[], None]) -> bool:
    """Do the last I/O of a cache's life, for ``JOIN_S`` at most; false if it was left behind.

    Closing an index waits for its disk like everything else, and by now no lane takes a job.
    """
    bugs: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as bug:  # noqa: BLE001 - raised again on the thread that waits
            bugs.append(bug)

    thread = Thread(target=work, name="surefoot-finish", daemon=True)
    thread.start()
    thread.join(JOIN_S)
    for bug in bugs:
        raise bug
    return not thread.is_alive()


class Outage:
    """Whether a tier is planned around, because a read of it stalled lately and still does."""

    def __init__(self, lane: Lane, clock: Callable[[], float]) -> None:
        self._lane = lane
        self._clock = clock
        self._until = clock()

    def begin(self) -> None:
        """Say that a read has just stalled."""
        self._until = self._clock() + DOWN_S

    @property
    def lasts(self) -> bool:
        """Whether the tier is to be left alone."""
        return self._clock() < self._until and self._lane.stalled > 0
