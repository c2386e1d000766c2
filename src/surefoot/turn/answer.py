"""The flow of one turn, top to bottom.

A turn is a generator that yields after each unit of work (one prefill block, one decoded token), so
that a scheduler can interleave turns on one engine thread. Each block is committed as it finishes:
closing a turn early loses nothing that was computed, frees its buffers and leaves a ledger to seal.

A fault of the cache never reaches the tokens (I10): what cannot be restored is computed, by the
same calls, and the receipt says why.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias

from surefoot import identity
from surefoot.cache import Plan, content
from surefoot.chat.request import ChatInput
from surefoot.engine import Placed, Run, Sampled
from surefoot.errors import RequestError
from surefoot.identity import Block, FeatureName
from surefoot.prompt import MediaName, Prompt, grid
from surefoot.receipt import Finish, Miss
from surefoot.state import Features
from surefoot.turn.ledger import Ledger
from surefoot.turn.request import Delta, Done, Needs, TokenText, TurnRequest, Unit

Steps: TypeAlias = Generator[Unit, None, None]
Contents: TypeAlias = dict[tuple[str, int], bytes]  # (group, block index) -> content digest


def turn(ledger: Ledger) -> Steps:
    """Answer one request; the last unit is ``Done``.

    Raises:
        RequestError: before the first unit, if the request cannot become a prompt that fits.
        EngineError: at any unit.
    """
    request, serving = ledger.request, ledger.serving
    ledger.started_at = serving.clock()
    _check_bias(request, serving.chat.tokens)
    # Megabytes that cannot fit are refused before they are encoded, which takes seconds.
    least = serving.chat.least_tokens(request.input)
    if least >= serving.engine.context_tokens:
        raise _too_long(request, f"at least {least}", serving.engine.context_tokens)
    yield from _look(ledger)
    prompt = serving.chat.prompt(request.input, ledger.media)
    room = _room(request, len(prompt), serving.engine.context_tokens)
    blocks = _name(prompt, ledger)
    yield Needs.of(serving.engine, len(prompt) + room, ledger.media)
    with closing((yield from _consumed(prompt, blocks, ledger))) as run:
        finish = yield from _decode(run, room, ledger)
    # Too late to start over: tokens are out. The receipt says what they stood on.
    ledger.suspect = not _stands(ledger)
    yield _done(ledger, finish)


def idle(ledger: Ledger, answer: str) -> Steps:
    """Compute and commit what the next turn of this conversation is expected to begin with.

    The history as the template will render it again, whole blocks only: a turn with no decode, with
    its own buffers and a receipt of kind ``idle``. Yields nothing when nothing is left to do.

    The ledger holds what the turn made of the request's images: to decode one again would keep a
    request that comes meanwhile waiting, and would start over each time.
    """
    request, serving = ledger.request, ledger.serving
    ledger.started_at = serving.clock()
    assert isinstance(request.input, ChatInput), request.input
    history = serving.chat.history(request.input, answer, ledger.media)
    blocks = _name(history, ledger) if history else ()
    if history is None or not blocks or blocks[-1].end > serving.engine.context_tokens:
        return
    consumed = _consumes(blocks, ledger)
    if serving.cache.plan(blocks, limit=len(blocks), features=consumed).boundary == len(blocks):
        return
    prompt = history.upto(blocks[-1].end)
    ledger.prompt_tokens = len(prompt)
    yield Needs.of(serving.engine, len(prompt), ledger.media)
    (yield from _consumed(prompt, blocks, ledger)).close()
    yield _done(ledger, Finish.STOP)


def _look(ledger: Ledger) -> Steps:
    """Decode the request's images and make of each what the vision tower consumes, one a unit.

    Raises:
        RequestError: an image cannot be read, or the model takes none.
    """
    clock, chat = ledger.serving.clock, ledger.serving.chat
    started = clock()
    for item in chat.media(ledger.request.input):
        ledger.media.append(item)
        ledger.media_s += clock() - started
        yield None
        started = clock()


def _check_bias(request: TurnRequest, tokens: int) -> None:
    beyond = max(request.sampling.logit_bias, default=0)
    if beyond >= tokens:
        raise RequestError(
            f"'logit_bias' names token {beyond}; this model's tokens are 0 to {tokens - 1}",
            param="logit_bias",
        )


def _room(request: TurnRequest, prompt_tokens: int, context_tokens: int) -> int:
    """Return how many tokens the answer may have."""
    if prompt_tokens == 0:
        param = _param(request)
        raise RequestError(f"'{param}' is empty: it must make at least one token", param=param)
    if prompt_tokens >= context_tokens:
        raise _too_long(request, str(prompt_tokens), context_tokens)
    room = context_tokens - prompt_tokens
    return room if request.max_tokens is None else min(room, request.max_tokens)


def _too_long(request: TurnRequest, tokens: str, context_tokens: int) -> RequestError:
    return RequestError(
        f"'{_param(request)}' makes {tokens} tokens; this model's context of {context_tokens} "
        "tokens must hold the prompt and at least one token of the answer",
        param=_param(request),
        code="context_length_exceeded",
    )


def _param(request: TurnRequest) -> str:
    return "messages" if isinstance(request.input, ChatInput) else "prompt"


def _name(prompt: Prompt, ledger: Ledger) -> tuple[Block, ...]:
    request, engine = ledger.request, ledger.serving.engine
    ledger.prompt_tokens = len(prompt)
    ledger.ids = prompt.ids
    ledger.spans = prompt.media
    salt = identity.salt_of(request.key, request.cache_salt)
    ledger.features = {
        span.media: identity.feature_name(engine.model, salt, span.media) for span in prompt.media
    }
    ends = grid(prompt, engine.block_tokens, atomic=engine.atomic_spans)
    blocks = identity.name_blocks(prompt, ends, engine.model, salt)
    if blocks:
        ledger.serving.cache.note_tenant(
            blocks[0].parent, key=request.key, cache_salt=request.cache_salt
        )
    return blocks


def _consumes(blocks: Sequence[Block], ledger: Ledger) -> tuple[tuple[FeatureName, ...], ...]:
    """Return, by block, the features that it consumes; () where no block does."""
    if not ledger.spans:
        return ()
    return tuple(
        tuple(dict.fromkeys(ledger.features[span.media] for span in block.spans))
        for block in blocks
    )


def _consumed(
    prompt: Prompt, blocks: Sequence[Block], ledger: Ledger
) -> Generator[Unit, None, Run]:
    """Return a run that has consumed the prompt; the caller closes it.

    Where something that it stood on is quarantined on the way, all of it is computed anew, and
    nothing is reused (I10).
    """
    engine, sampling = ledger.serving.engine, ledger.request.sampling
    while True:
        run = engine.begin(prompt, sampling, ledger.media)
        try:
            stood = yield from _prefill(run, prompt, blocks, ledger)
        except BaseException:
            run.close()
            raise
        if stood:
            return run
        run.close()
        ledger.begin_anew()


def _prefill(
    run: Run, prompt: Prompt, blocks: Sequence[Block], ledger: Ledger
) -> Generator[Unit, None, bool]:
    """Restore what is stored and compute the rest by the grid, committing each whole block.

    Yields between units, not after the last one: the first token belongs to the tail's unit. Stops
    and returns false once a fence fell on what the run stands on.
    """
    cache = ledger.serving.cache
    ends = [block.end for block in blocks if block.end < len(prompt)] + [len(prompt)]
    limit = len(ends) - 1  # at least one token is computed (I4)
    if ledger.serving.engine.unsupported is not None:
        ledger.miss = Miss.UNSUPPORTED
        return (yield from _compute(run, ends, {}, ledger))
    ledger.plan = plan = cache.plan(blocks, limit=limit, features=_consumes(blocks, ledger))
    with cache.pinned(plan):
        contents = _restore(run, plan, ledger)
        if not (yield from _compute(run, ends, contents, ledger)):
            return False
    if limit:
        _digest_state(blocks[:limit], contents, ledger)
    return True


def _stands(ledger: Ledger) -> bool:
    """Return whether nothing that the turn took from the cache was quarantined since."""
    plan, cache = ledger.plan, ledger.serving.cache
    if plan is None:
        return True
    restored = ledger.restored.boundary if ledger.restored else 0
    found = [ledger.features[media] for media, stored in ledger.supplied.items() if stored]
    return not (restored or found) or cache.stands(plan, restored, found)


def _compute(
    run: Run, ends: Sequence[int], contents: Contents, ledger: Ledger
) -> Generator[Unit, None, bool]:
    """Prefill from where the run stands to the last end, noting the contents of what is cut.

    Returns false, and stops, once the run no longer stands on sound state.
    """
    clock, plan = ledger.serving.clock, ledger.plan
    found = _found_features(run.position, ledger)
    for index, end in enumerate(ends):
        if end <= run.position:
            continue
        yield from _supply(run, end, found, ledger)
        if not _stands(ledger):
            return False
        started = clock()
        run.prefill(end)
        ledger.position = run.position
        if plan is not None and index < len(plan.blocks):
            contents |= _commit(run, plan, index, ledger)
        ledger.prefill_s += clock() - started
        if end < ends[-1]:
            yield None
    return _stands(ledger)


def _found_features(position: int, ledger: Ledger) -> dict[MediaName, Features]:
    """Return the stored features of the media that is still to be consumed."""
    serving = ledger.serving
    if serving.engine.unsupported is not None or not ledger.reads:
        return {}
    items = {item.name: item for item in ledger.media}
    wanted = {
        ledger.features[span.media]: items[span.media]
        for span in ledger.spans
        if span.end > position
    }
    if not wanted:
        return {}
    started = serving.clock()
    found = serving.cache.features(wanted, deadline_s=serving.restore_floor_s)
    ledger.restore_s += serving.clock() - started
    return {wanted[name].name: features for name, features in found.items()}


def _supply(run: Run, end: int, found: dict[MediaName, Features], ledger: Ledger) -> Iterator[Unit]:
    """Hand over the features that the tokens up to ``end`` need; a run of the tower is a unit."""
    serving = ledger.serving
    writes = ledger.request.mode.writes and serving.engine.unsupported is None
    for span, item in zip(ledger.spans, ledger.media, strict=False):
        if span.start >= end or span.end <= run.position or span.media in ledger.supplied:
            continue
        features = found.pop(span.media, None)
        ledger.supplied[span.media] = features is not None
        if features is not None:
            run.supply(span.media, features)
            continue
        started = serving.clock()
        features = serving.engine.encode(item)
        ledger.media_s += serving.clock() - started
        if writes:
            name = ledger.features[item.name]
            serving.cache.commit_features(name, item, features, turn=ledger.plan)
        run.supply(span.media, features)
        yield None


def _restore(run: Run, plan: Plan, ledger: Ledger) -> Contents:
    """Install the greatest stored boundary; a miss leaves the run at 0 and says why."""
    serving = ledger.serving
    if not ledger.reads:
        ledger.miss = Miss.QUARANTINED if ledger.request.mode.reads else Miss.BYPASS
        return {}
    started = serving.clock()
    tokens = plan.blocks[plan.boundary - 1].end if plan.boundary else 0
    deadline_s = max(serving.restore_floor_s, tokens / serving.engine.prefill_tokens_per_s)
    restored = serving.cache.restore(plan, deadline_s=deadline_s)
    ledger.miss = restored.miss_reason
    ledger.restored = restored
    if restored.boundary:
        ledger.boundary = plan.blocks[restored.boundary - 1]
        parts = [Placed(one.start, one.end, one.part) for one in restored.parts]
        run.install(ledger.boundary.end, parts)
        ledger.position = run.position
        ledger.sources = restored.sources
        ledger.verified = restored.verified
    ledger.restore_s += serving.clock() - started
    return dict(restored.contents)


def _commit(run: Run, plan: Plan, index: int, ledger: Ledger) -> Contents:
    """Cut the block just prefilled; store its parts if the request lets us."""
    cache, block = ledger.serving.cache, plan.blocks[index]
    assert ledger.prompt_tokens is not None
    kept = cache.kept_groups(plan, index, prompt_tokens=ledger.prompt_tokens)
    parts = [(part, content(part)) for part in run.cut(block.start, kept)]
    if ledger.request.mode.writes:
        # A record names the features its block consumed: a bad one takes the block with it.
        features = plan.features[index] if plan.features else ()
        added = cache.commit(block, parts, turn=plan, features=features)
        ledger.committed_tokens += added
        if added:
            ledger.committed += [(part.group, index, digest) for part, digest in parts]
    return {(part.group, index): digest for part, digest in parts}


def _digest_state(blocks: Sequence[Block], contents: Contents, ledger: Ledger) -> None:
    """Digest every part needed at the last boundary below the prompt's last token."""
    ends = [block.end for block in blocks]
    groups = ledger.serving.engine.groups
    needed = [(one.name, index) for one in groups for index in one.law.needs(ends, len(ends))]
    ledger.state_tokens = ends[-1]
    ledger.state_digest = identity.state_digest(
        (group, blocks[index].start, contents[group, index]) for group, index in sorted(needed)
    ).hex()


def _decode(run: Run, room: int, ledger: Ledger) -> Generator[Unit, None, Finish]:
    """Choose tokens until the answer ends; one token a unit."""
    request, serving = ledger.request, ledger.serving
    reader = serving.chat.reader(request.stop)
    stop_tokens = frozenset() if request.ignore_eos else serving.engine.stop_tokens
    while True:
        sampled = run.sample()
        if ledger.first_token_at is None:
            ledger.first_token_at = serving.clock()
        ledger.completion_tokens += 1
        if sampled.token in stop_tokens:
            yield _delta(reader.finish(), None, ledger)
            return Finish.STOP
        text = reader.push(sampled.token)
        if reader.stopped:
            yield _delta(text, sampled, ledger)
            return Finish.STOP
        if ledger.completion_tokens == room:
            yield _delta(text + reader.finish(), sampled, ledger)
            return Finish.LENGTH
        yield _delta(text, sampled, ledger)
        run.feed(sampled.token)


def _delta(text: str, sampled: Sampled | None, ledger: Ledger) -> Delta:
    ledger.text += text
    if sampled is None or sampled.logprob is None:
        return Delta(text, ())
    chat = ledger.serving.chat
    shown, raw = chat.token_text(sampled.token)
    top = tuple((*chat.token_text(token), logprob) for token, logprob in sampled.top)
    return Delta(text, (TokenText(sampled.token, shown, raw, sampled.logprob, top),))


def _done(ledger: Ledger, finish: Finish) -> Done:
    receipt = ledger.seal(finish)
    assert receipt is not None, "a turn that reached its end had a prompt"
    return Done(receipt, ledger.completion_tokens)
