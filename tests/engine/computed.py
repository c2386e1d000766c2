"""One model computed cold or restored, and all that can be known of it, for comparing bits."""

from functools import cache

import torch

from surefoot import identity
from surefoot.engine import Placed, Sampled, Sampling
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.table import StateTable, inspect
from surefoot.engine.hf.vision import vision_of
from surefoot.identity import ModelName
from surefoot.prompt import grid
from surefoot.state import Component, Part
from surefoot.testing.families import TEXT_TOKENS, family, model
from surefoot.testing.live_state import differences, live_state, same

DTYPES = (torch.float32, torch.bfloat16)


class Greedy:
    """Choose the greatest logit of a text token, and keep every row of logits that was seen."""

    def __init__(self):
        self.seen = []

    def __call__(self, logits, *, prompt_ids, generated, sampling, position):
        self.seen.append(logits.clone())
        return Sampled(int(logits[:TEXT_TOKENS].argmax()))


class Subject:
    """One family's model in one dtype and attention, and the table that was made for it."""

    def __init__(self, name, dtype, attention):
        self.name = name
        self.model = model(name, dtype, attention)
        self.block = family(name).block_tokens
        self.vision = vision_of(self.model)
        self.atomic = self.vision is not None and self.vision.tower.atomic_spans
        self.table = inspect(self.model, block_tokens=self.block, atomic_spans=self.atomic)
        assert isinstance(self.table, StateTable), self.table
        self.encode = cache(self.vision.encode) if self.vision else None

    def ends(self, prompt):
        return grid(prompt, self.block, atomic=self.atomic)

    def names(self, prompt):
        """Return the names of the prompt's blocks, as the cache would know them."""
        salt = identity.salt_of(None, None)
        blocks = identity.name_blocks(prompt, self.ends(prompt), ModelName(b"m" * 32), salt)
        return [block.name for block in blocks]

    def run(self, prompt, media=(), choose=None, table=True):
        return HfRun(
            self.model,
            self.table if table else None,
            prompt,
            Sampling(),
            choose=choose or Greedy(),
            vision=self.vision,
            media=media,
        )

    def needed(self, prompt, boundary, stored):
        """Return those of ``stored`` that a restore at ``boundary`` asks for."""
        ends = [end for end in self.ends(prompt) if end <= boundary]
        index = {(one.part.group, one.end): one for one in stored}
        return [
            index[group.name, ends[block]]
            for group in self.table.groups
            for block in group.law.needs(ends, len(ends))
        ]


class Computed:
    """All that can be known of one run: logits, tokens, state before and after decode, parts."""

    def __init__(self, subject, prompt, media=(), *, boundary=0, parts=(), tokens=8):
        choose = Greedy()
        run = subject.run(prompt, media, choose)
        if boundary:
            run.install(boundary, parts)
        self.states = {run.position: live_state(run._cache)} if boundary else {}
        self.stored = []
        names = {group.name for group in subject.table.groups}
        ends = subject.ends(prompt)
        for end in (*ends, len(prompt)):
            if end > run.position:
                start = run.position
                supply(run, subject, prompt, media, end)
                run.prefill(end)
                self.states[end] = live_state(run._cache)
                if end in ends:
                    self.stored += [Placed(start, end, part) for part in run.cut(start, names)]
        self.tokens = []
        for _ in range(tokens):
            self.tokens.append(run.sample().token)
            run.feed(self.tokens[-1])
        run.sample()
        self.logits = choose.seen
        self.states["decoded"] = live_state(run._cache)
        run.close()


def supply(run, subject, prompt, media, end):
    """Hand over the features of the images that the tokens up to ``end`` show, as a turn does."""
    for span, item in zip(prompt.media, media, strict=False):
        if span.start < end and span.end > run.position:
            run.supply(item.name, subject.encode(item))


def as_read(stored):
    """Give parts the shape in which a store returns them: views of read-only, unaligned bytes."""
    return [
        Placed(
            one.start,
            one.end,
            Part(
                one.part.group,
                tuple(
                    Component(c.name, c.dtype, c.shape, memoryview(b"x" + c.data)[1:])
                    for c in one.part.components
                ),
            ),
        )
        for one in stored
    ]


def assert_equal(warm, cold, case):
    for place, state in warm.states.items():
        assert differences(state, cold.states[place]) == [], (case, place)
    assert warm.tokens == cold.tokens, case
    assert len(warm.logits) == len(cold.logits), case
    assert all(map(same, warm.logits, cold.logits)), case


subject_of = cache(Subject)
