"""The suite that every engine must pass: restored is cold, and stored bytes are only copied.

Subclass ``EngineContract`` and give it one fixture, ``engine``; for an engine that takes media give
it ``image`` as well. The suite goes through the
contract alone: what it sees of the state is what is cut from it, and what it sees of the logits is
chosen tokens and log-probabilities. An engine's own tests should look inside as well.
"""

import random
import re
from collections.abc import Sequence

import pytest

from surefoot.engine import Engine, Placed, Run, Sampled, Sampling
from surefoot.prompt import MediaItem, MediaSpan, Prompt, grid
from surefoot.state import Component, Features, Part, by_name

GREEDY = Sampling(temperature=0.0, top_logprobs=4)
ANSWER_TOKENS = 6


class EngineContract:
    """Tests of ``engine.Engine`` and ``engine.Run``; needs an engine with at least one group."""

    vocabulary = 256  # tokens below are text
    placeholder = 1

    @pytest.fixture
    def engine(self) -> Engine:
        """Return the engine under test; subclasses override this."""
        raise NotImplementedError

    def image(self, engine: Engine, seed: int) -> MediaItem:
        """Return an item that the engine's tower takes; another seed is another picture."""
        raise NotImplementedError

    def lengths(self, engine: Engine) -> list[int]:
        """Return prompt lengths around every boundary of three blocks."""
        step = engine.block_tokens
        return [blocks * step + more for blocks in (1, 2, 3) for more in (-1, 0, 1)]

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        """Return tokens that are the same for the same seed, whatever the count."""
        draw = random.Random(seed)
        return [draw.randrange(self.vocabulary) for _ in range(count)]

    def test_group_names_are_unique_and_fit_for_keys(self, engine: Engine) -> None:
        """Group names go into keys of tiers."""
        assert engine.groups
        assert all(re.fullmatch("[a-z0-9-]+", name) for name in by_name(engine.groups))

    def test_ingredients_are_texts_that_stay(self, engine: Engine) -> None:
        """What is kept beside a model's name to say what it was made of goes into JSON."""
        first, again = dict(engine.ingredients), dict(engine.ingredients)
        assert first == again
        assert first
        assert all(isinstance(text, str) for pair in first.items() for text in pair)

    def test_position_counts_what_was_consumed(self, engine: Engine) -> None:
        """Restored, prefilled and fed tokens all count."""
        step = engine.block_tokens
        prompt = Prompt.of(self.tokens(step + 1))
        run = engine.begin(prompt, GREEDY)
        seen = [run.position]
        run.prefill(step)
        parts = placed(run, engine, 0)
        seen.append(run.position)
        run.prefill(step + 1)
        seen.append(run.position)
        run.feed(run.sample().token)
        seen.append(run.position)
        run.close()
        restored = engine.begin(prompt, GREEDY)
        restored.install(step, parts)
        seen.append(restored.position)
        restored.close()
        assert seen == [0, step, step + 1, step + 2, step]

    def test_parts_fit_their_groups(self, engine: Engine) -> None:
        """What is cut passes the check that what is read must pass."""
        _, stored = cold(engine, Prompt.of(self.tokens(2 * engine.block_tokens)))
        groups = by_name(engine.groups)
        assert len(stored) == 2 * len(groups)
        for one in stored:
            assert groups[one.part.group].mismatch(one.part, one.start, one.end) is None

    def test_only_the_groups_asked_for_are_cut(self, engine: Engine) -> None:
        """A snapshot that is not kept is never copied."""
        run = engine.begin(Prompt.of(self.tokens(engine.block_tokens)), GREEDY)
        run.prefill(engine.block_tokens)
        for group in engine.groups:
            assert [part.group for part in run.cut(0, {group.name})] == [group.name]
        assert run.cut(0, ()) == ()
        run.close()

    def test_a_restored_run_is_the_cold_run_at_every_boundary(self, engine: Engine) -> None:
        """I5: answer and later parts are equal wherever the restore stands."""
        for length in self.lengths(engine):
            prompt = Prompt.of(self.tokens(length))
            answer, stored = cold(engine, prompt)
            for n in range(1, len(grid(prompt, engine.block_tokens)) + 1):
                if n * engine.block_tokens < length:
                    warm_answer, warm_stored = warm(engine, prompt, n, stored)
                    assert warm_answer == answer, (length, n)
                    assert raw(warm_stored) == raw(stored)[len(engine.groups) * n :], (length, n)

    def test_a_donor_leaves_no_trace(self, engine: Engine) -> None:
        """I5: a prompt restored from a longer conversation's parts is the prompt computed cold."""
        step = engine.block_tokens
        donor = self.tokens(5 * step)
        _, stored = cold(engine, Prompt.of(donor))
        for shared in (step + 1, 2 * step, 2 * step + 1):
            prompt = Prompt.of(donor[:shared] + self.tokens(3 * step + 2 - shared, seed=1))
            n = shared // step
            answer, own = cold(engine, prompt)
            warm_answer, rest = warm(engine, prompt, n, stored)
            assert warm_answer == answer, shared
            assert raw(rest) == raw(own)[len(engine.groups) * n :], shared
            # What it cut itself, on top of the donor's parts, is as good as any.
            again, _ = warm(engine, prompt, 3, [*stored[: len(engine.groups) * n], *rest])
            assert again == answer, shared

    def test_a_run_never_changes_stored_bytes(self, engine: Engine) -> None:
        """Copy in, copy out: a part outlives every run that used it."""
        step = engine.block_tokens
        prompt = Prompt.of(self.tokens(2 * step + 1))
        _, stored = cold(engine, prompt)
        before = raw(stored)
        first, _ = warm(engine, prompt, 2, stored)
        assert raw(stored) == before
        assert warm(engine, prompt, 2, stored)[0] == first

    def test_an_ill_fitting_part_is_refused_whole(self, engine: Engine) -> None:
        """All or nothing: after a refusal the run computes as if nothing had been tried."""
        step = engine.block_tokens
        prompt = Prompt.of(self.tokens(step + 1))
        answer, stored = cold(engine, prompt)
        for at, one in enumerate(stored):
            parts = [*stored[:at], reshaped(one), *stored[at + 1 :]]
            run = engine.begin(prompt, GREEDY)
            with pytest.raises(ValueError, match=r"."):
                run.install(step, parts)
            assert run.position == 0
            assert finish(run, engine, prompt)[0] == answer, one.part.group
            run.close()

    def test_sampling_is_a_function_of_state_and_seed(self, engine: Engine) -> None:
        """No generator's hidden state decides a token."""
        prompt = Prompt.of(self.tokens(engine.block_tokens + 3))
        sampling = Sampling(temperature=1.0, seed=11, top_logprobs=2)
        answers = []
        for _ in range(2):
            run = engine.begin(prompt, sampling)
            answers.append(finish(run, engine, prompt)[0])
            run.close()
        assert answers[0] == answers[1]

    def test_features_fit_their_schema_and_are_a_function_of_the_item(self, engine: Engine) -> None:
        """Encoded again, and after another item, an item has the same features."""
        if engine.features is None:
            return
        items = [self.image(engine, seed) for seed in (0, 1, 0)]
        made = [engine.encode(item) for item in items]
        for item, features in zip(items, made, strict=True):
            assert engine.features.mismatch(features, item.tokens) is None
        held = [[bytes(one.data) for one in features.components] for features in made]
        assert held[0] == held[2] != held[1]

    def test_ill_fitting_features_are_refused_and_change_nothing(self, engine: Engine) -> None:
        """A run takes features of its item's length only; the right ones may still follow."""
        if engine.features is None:
            return
        prompt, media = self.illustrated(engine, (0,))
        answer, _ = cold(engine, prompt, media)
        made = engine.encode(media[0])
        run = engine.begin(prompt, GREEDY, media)
        with pytest.raises(ValueError, match=r"."):
            run.supply(media[0].name, Features(made.components[:-1]))
        assert finish(run, engine, prompt, media)[0] == answer
        run.close()

    def test_a_restored_run_with_images_is_the_cold_run(self, engine: Engine) -> None:
        """I5: restored before, inside or behind images, answer and later parts are equal."""
        if engine.features is None:
            return
        answers = []
        for seeds in ((0, 1, 0), (0, 2, 0), (1, 0, 0)):
            prompt, media = self.illustrated(engine, seeds)
            answer, stored = cold(engine, prompt, media)
            answers.append(answer)
            ends = grid(prompt, engine.block_tokens, atomic=engine.atomic_spans)
            for n in range(1, len([end for end in ends if end < len(prompt)]) + 1):
                warm_answer, rest = warm(engine, prompt, n, stored, media)
                assert warm_answer == answer, (seeds, n)
                assert raw(rest) == raw(stored)[len(engine.groups) * n :], (seeds, n)
        # Equal tokens all three times: only the pictures differ.
        assert answers[0] != answers[1]
        assert answers[0] != answers[2]

    def illustrated(
        self, engine: Engine, seeds: Sequence[int]
    ) -> tuple[Prompt, Sequence[MediaItem]]:
        """Return a prompt with an image per seed, half a block of text before each, and items."""
        text = self.tokens(engine.block_tokens // 2)
        ids: list[int] = []
        spans: list[MediaSpan] = []
        media = [self.image(engine, seed) for seed in seeds]
        for item in media:
            ids += text
            spans.append(MediaSpan(len(ids), item.tokens, item.name))
            ids += [self.placeholder] * item.tokens
        return Prompt.of([*ids, *text, *text, *text[:1]], tuple(spans)), media

    def test_two_runs_do_not_disturb_each_other(self, engine: Engine) -> None:
        """Runs that are interleaved answer as alone."""
        step = engine.block_tokens
        prompts = [Prompt.of(self.tokens(2 * step + 1, seed)) for seed in (0, 1)]
        alone = [cold(engine, prompt)[0] for prompt in prompts]
        runs = [engine.begin(prompt, GREEDY) for prompt in prompts]
        for end in (step, 2 * step, 2 * step + 1):
            for run in runs:
                run.prefill(end)
        answers: list[list[Sampled]] = [[], []]
        for _ in range(ANSWER_TOKENS):
            for run, answer in zip(runs, answers, strict=True):
                answer.append(run.sample())
                run.feed(answer[-1].token)
        for run in runs:
            run.close()
        assert answers == alone


def cold(
    engine: Engine, prompt: Prompt, media: Sequence[MediaItem] = ()
) -> tuple[list[Sampled], list[Placed]]:
    """Compute a prompt from nothing; return its answer and the parts of all its blocks."""
    run = engine.begin(prompt, GREEDY, media)
    answer, stored = finish(run, engine, prompt, media)
    run.close()
    return answer, stored


def warm(
    engine: Engine,
    prompt: Prompt,
    n: int,
    stored: Sequence[Placed],
    media: Sequence[MediaItem] = (),
) -> tuple[list[Sampled], list[Placed]]:
    """Restore ``n`` blocks and compute the rest; return the answer and the parts of the rest."""
    run = engine.begin(prompt, GREEDY, media)
    ends = grid(prompt, engine.block_tokens, atomic=engine.atomic_spans)
    run.install(ends[n - 1], needed(engine, prompt, n, stored))
    answer, rest = finish(run, engine, prompt, media)
    run.close()
    return answer, rest


def needed(engine: Engine, prompt: Prompt, n: int, stored: Sequence[Placed]) -> list[Placed]:
    """Return the parts that the laws ask for at boundary ``n``."""
    ends = grid(prompt, engine.block_tokens, atomic=engine.atomic_spans)
    starts = (0, *ends)
    index = {(one.part.group, one.start): one for one in stored}
    return [
        index[group.name, starts[block]]
        for group in engine.groups
        for block in group.law.needs(ends, n)
    ]


def finish(
    run: Run, engine: Engine, prompt: Prompt, media: Sequence[MediaItem] = ()
) -> tuple[list[Sampled], list[Placed]]:
    """Prefill what is left by the grid, then decode; every sample is asked for twice."""
    stored: list[Placed] = []
    ahead = zip(prompt.media, media, strict=True)
    for item in {item.name: item for span, item in ahead if span.end > run.position}.values():
        run.supply(item.name, engine.encode(item))
    for end in grid(prompt, engine.block_tokens, atomic=engine.atomic_spans):
        if end > run.position:
            start = run.position
            run.prefill(end)
            stored += placed(run, engine, start)
    if run.position < len(prompt):
        run.prefill(len(prompt))
    answer = []
    for _ in range(ANSWER_TOKENS):
        answer.append(run.sample())
        assert run.sample() == answer[-1]
        run.feed(answer[-1].token)
    return answer, stored


def placed(run: Run, engine: Engine, start: int) -> list[Placed]:
    """Cut all parts of the block that was just prefilled."""
    names = {group.name for group in engine.groups}
    return [Placed(start, run.position, part) for part in run.cut(start, names)]


def raw(stored: Sequence[Placed]) -> list[tuple[str, int, int, list[tuple[str, bytes]]]]:
    """Return a copy of everything that parts hold, for comparison."""
    return [
        (
            one.part.group,
            one.start,
            one.end,
            [(component.name, bytes(component.data)) for component in one.part.components],
        )
        for one in stored
    ]


def reshaped(one: Placed) -> Placed:
    """Return the part with its last component a column of bytes: sound in itself, ill-fitting."""
    *rest, last = one.part.components
    column = Component(last.name, "uint8", (memoryview(last.data).nbytes, 1, 1, 1), last.data)
    return Placed(one.start, one.end, Part(one.part.group, (*rest, column)))
