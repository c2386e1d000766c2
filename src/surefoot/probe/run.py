"""The legs in order, inside a budget."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from surefoot import settings
from surefoot.errors import CapacityError, RequestError
from surefoot.probe.acquaint import PATIENCE_LEAST_S, acquaint
from surefoot.probe.asking import Asker
from surefoot.probe.judge import Judged, judge
from surefoot.probe.legs import Facts, Leg, Run
from surefoot.probe.legs_around import AROUND_LEGS
from surefoot.probe.legs_images import IMAGE_LEGS
from surefoot.probe.legs_tenants import TENANT_LEGS
from surefoot.probe.legs_text import TEXT_LEGS
from surefoot.probe.plants import Plants
from surefoot.probe.settle import settle
from surefoot.probe.tasks import Tasks
from surefoot.probe.trail import Budget, BudgetEnded, NotApplicable, Seen, Trail, Unsettled
from surefoot.probe.verdicts import LegReport, ProbeReport, Verdict
from surefoot.probe.witnesses import Timed

EVERY_LEG: tuple[Leg, ...] = (*TEXT_LEGS, *IMAGE_LEGS, *TENANT_LEGS, *AROUND_LEGS)


class Watcher(Protocol):
    """Who is told while the probe runs."""

    def learned(self, label: str, words: str) -> None:
        """Tell a fact of the server."""

    def began(self, leg: Leg, tokens: int) -> None:
        """Tell that a leg begins, and about how many tokens it asks for."""

    def asked(self, seen: Seen) -> None:
        """Tell of one exchange."""

    def ended(self, report: LegReport) -> None:
        """Tell how a leg ended."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked to do.

    Attributes:
        seed: what all texts and codes are drawn from. A seed that this server has seen before makes
            prompts that are not fresh, which is noticed and said.
        model: the model's id; None takes the first one listed.
        legs: names of legs; none for all.
        budget_tokens: most tokens, of prompts and answers together.
        budget_seconds: most seconds; a request under way is waited for.
        error_rate: of the time test.
        restart: restarts the server and returns when it can be asked again.
    """

    seed: int
    model: str | None = None
    legs: Sequence[str] = ()
    budget_tokens: int = settings.PROBE_TOKENS.default
    budget_seconds: float = settings.PROBE_SECONDS.default
    error_rate: float = settings.PROBE_ERROR_RATE.default
    restart: Callable[[], Awaitable[None]] | None = None


async def run_probe(asker: Asker, options: Options, watch: Watcher) -> ProbeReport:
    """Probe one server.

    Raises:
        CapacityError: it cannot be reached, or does not answer at all.
        RequestError: it refuses the key, the model or the plainest request; or there is no such
            leg.
    """
    legs = chosen_legs(options.legs)
    started = asker.clock()
    budget = Budget(options.budget_tokens, options.budget_seconds, started)
    asker.patience_s = min(asker.patience_s, max(PATIENCE_LEAST_S, options.budget_seconds))
    plants = Plants(options.seed)
    controls: list[Timed] = []
    first = Trail(asker, plants, budget, watch.asked, controls, name="acquaintance")
    try:
        facts, tasks = await acquaint(first, model=options.model, told=watch.learned)
    except BudgetEnded:  # nothing is left for any leg, and each says so
        facts, tasks = Facts(), Tasks(plants)
    run = Run(asker, plants, tasks, facts, options.restart)
    reports = []
    for leg in legs:
        trail = Trail(asker, plants, budget, watch.asked, controls, name=leg.name)
        watch.began(leg, leg.cost(facts))
        report = await _walk(leg, run, trail, options.error_rate)
        watch.ended(report)
        reports.append(report)
    return ProbeReport(
        server=asker.url,
        model=asker.model,
        seed=options.seed,
        legs=tuple(reports),
        facts=tuple(facts.notes.items()),
        tokens=asker.spent_tokens,
        seconds=asker.clock() - started,
    )


def chosen_legs(names: Sequence[str]) -> tuple[Leg, ...]:
    """Return the legs of these names in the order they run; all if there are no names.

    Raises:
        RequestError: there is no such leg; the text lists them.
    """
    known = {leg.name for leg in EVERY_LEG}
    for name in names:
        if name not in known:
            every = ", ".join(leg.name for leg in EVERY_LEG)
            raise RequestError(f"there is no leg {name!r}: choose from {every}")
    return tuple(leg for leg in EVERY_LEG if not names or leg.name in names)


async def _walk(leg: Leg, run: Run, trail: Trail, error_rate: float) -> LegReport:
    """Walk one leg, ask what its verdict needs, and judge it."""
    asker, tokens, started = run.asker, run.asker.spent_tokens, run.asker.clock()
    skipped: str | None = None
    unsettled: str | None = None

    async def to_its_end() -> None:
        trail.budget.check(asker)
        _affords(leg, run, trail)
        await leg.walk(run, trail)

    async def settled() -> None:
        await settle(run, trail, error_rate, whole=unsettled is None)

    for step in (to_its_end, settled):
        try:
            await step()
        except NotApplicable as reason:
            skipped = str(reason)
            break
        except Unsettled as reason:
            unsettled = unsettled or str(reason)
        except CapacityError as error:  # it went away under the probe: nothing is proven by that
            unsettled = unsettled or f"{error}; see the server's own log"
    if skipped is not None:
        judged = Judged(Verdict.SKIPPED, skipped)
    else:
        judged = judge(trail, run.facts, error_rate, unsettled)
    return LegReport(
        name=leg.name,
        title=leg.title,
        verdict=judged.verdict,
        reason=judged.reason,
        reuse=judged.reuse,
        evidence=judged.evidence,
        exchanges=tuple(seen.shown() for seen in trail.seen),
        tokens=asker.spent_tokens - tokens,
        seconds=asker.clock() - started,
    )


def _affords(leg: Leg, run: Run, trail: Trail) -> None:
    cost, left = leg.cost(run.facts), trail.budget.tokens_left(run.asker)
    if cost > left:
        raise BudgetEnded(
            f"it asks for about {cost:,} tokens and {left:,} are left; "
            "a larger --budget-tokens settles it"
        )
