"""A run keeps the engine's contract, calls decode where decode is due, and fails as one."""

from contextlib import contextmanager
from functools import cache

import pytest
import torch

from surefoot.engine import Placed, Sampled, Sampling
from surefoot.engine.hf import layers
from surefoot.engine.hf import run as run_module
from surefoot.engine.hf import sampling as hf_sampling
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.table import inspect
from surefoot.errors import EngineError
from surefoot.identity import ModelName
from surefoot.prompt import MediaName, MediaSpan, Prompt
from surefoot.testing.engine_contract import GREEDY, EngineContract
from surefoot.testing.families import FAMILIES, model

torch.set_num_threads(2)


class BareEngine:
    """A model and its table as an engine, and nothing else."""

    model = ModelName(b"m" * 32)
    atomic_spans = False
    context_tokens = 4096
    unsupported = None
    stop_tokens = frozenset()
    prefill_tokens_per_s = 1.0
    features = None

    def __init__(self, name, dtype):
        self.ingredients = {"weights": "random"}
        self.block_tokens = FAMILIES[name].block_tokens
        self._model = model(name, dtype, FAMILIES[name].attentions[0])
        self._table = inspect(self._model, block_tokens=self.block_tokens)
        self.groups = self._table.groups

    def begin(self, prompt, sampling, media=()):
        return HfRun(self._model, self._table, prompt, sampling, choose=hf_sampling.choose)


engine_of = cache(BareEngine)


class TestRunContract(EngineContract):
    @pytest.fixture(params=["llama", "qwen4_exp", "deepseek_v4"])
    def engine(self, request):
        return engine_of(request.param, torch.bfloat16)

    def lengths(self, engine):
        return [engine.block_tokens + 1, 3 * engine.block_tokens]  # test_hf_families tries all


def greedy(logits, *, prompt_ids, generated, sampling, position):
    return Sampled(int(logits.argmax()))


def begun(length=70, table=True, choose=greedy, name="llama"):
    engine = engine_of(name, torch.float32)
    found = engine._table if table else None
    prompt = Prompt.of([token % 256 for token in range(length)])
    return HfRun(engine._model, found, prompt, GREEDY, choose=choose)


def test_decode_and_nothing_else_uses_the_decode_attention(monkeypatch):
    entered = []

    @contextmanager
    def noted(subject):
        entered.append(run.position)
        yield

    monkeypatch.setattr(run_module, "decoding", noted)
    run = begun(length=65)
    run.prefill(64)
    run.prefill(65)  # a tail of one token is prefill
    assert entered == []
    run.feed(run.sample().token)
    run.feed(run.sample().token)
    assert entered == [65, 66]


def test_what_is_chosen_from_is_the_whole_history():
    seen = []

    def noted(logits, *, prompt_ids, generated, sampling, position):
        seen.append((tuple(logits.shape), len(prompt_ids), tuple(generated), sampling, position))
        return Sampled(5)

    run = begun(length=10, choose=noted)
    run.prefill(10)
    run.sample()
    run.feed(3)
    run.sample()
    assert seen == [((256,), 10, (), GREEDY, 10), ((256,), 10, (3,), GREEDY, 11)]


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_without_a_table_the_answer_is_the_same(name):
    answers = []
    for table in (True, False):
        run = begun(table=table, name=name)
        run.prefill(64)
        run.prefill(70)
        answers.append([])
        for _ in range(4):
            answers[-1].append(run.sample().token)
            run.feed(answers[-1][-1])
    assert answers[0] == answers[1]


def test_without_a_table_nothing_is_cut_or_installed():
    run = begun(table=False)
    with pytest.raises(AssertionError):
        run.install(64, [])
    run.prefill(64)
    with pytest.raises(AssertionError):
        run.cut(0, ["rows-0"])


def test_only_the_block_just_prefilled_is_cut():
    run = begun()
    run.prefill(64)
    with pytest.raises(AssertionError):
        run.cut(1, ["rows-0"])
    run.prefill(70)
    run.feed(run.sample().token)
    with pytest.raises(AssertionError):
        run.cut(64, ["rows-0"])


def test_an_unknown_group_is_a_bug():
    run = begun()
    run.prefill(64)
    with pytest.raises(AssertionError):
        run.cut(0, ["rows-9"])


def test_nothing_is_fed_before_the_prompt_is_consumed():
    run = begun()
    run.prefill(64)
    with pytest.raises(AssertionError):
        run.feed(1)


def test_a_restore_stands_on_nothing_that_was_computed():
    run = begun()
    run.prefill(64)
    with pytest.raises(AssertionError):
        run.install(64, [])


def stacks_of(run):
    return [stack.data for group in run._cache.stacks.values() for stack in group.values()]


def test_stacks_are_as_large_after_a_restore_as_when_computed(monkeypatch):
    """I5: a forward pass sees the same strides, whatever stood before it."""
    monkeypatch.setattr(layers, "STEP_ROWS", 32)
    cold, shapes = begun(length=200), {}
    stored = []
    for end in (64, 128, 192, 200):
        start = cold.position
        cold.prefill(end)
        shapes[end] = [data.shape for data in stacks_of(cold)]
        stored += [Placed(start, end, part) for part in cold.cut(start, ["rows-0"])]
    assert len(set(map(str, shapes.values()))) > 2
    for blocks in (1, 2, 3):
        warm = begun(length=200)
        warm.install(64 * blocks, stored[:blocks])
        for end in (64, 128, 192, 200)[blocks:]:
            warm.prefill(end)
            assert [data.shape for data in stacks_of(warm)] == shapes[end]


def test_a_restore_makes_room_for_the_next_block(monkeypatch):
    monkeypatch.setattr(layers, "STEP_ROWS", 64)
    run = begun(length=130)
    run.prefill(64)
    stored = [Placed(0, 64, part) for part in run.cut(0, ["rows-0"])]
    warm = begun(length=130)
    warm.install(64, stored)
    before = [data.data_ptr() for data in stacks_of(warm)]
    warm.prefill(128)
    assert [data.data_ptr() for data in stacks_of(warm)] == before


def test_a_failing_model_ends_the_run_with_an_engine_error():
    engine = engine_of("llama", torch.float32)
    run = HfRun(engine._model, engine._table, Prompt.of([1, 999]), Sampling(), choose=greedy)
    with pytest.raises(EngineError, match="the model failed at token 0: index out of range"):
        run.prefill(2)
    with pytest.raises(AssertionError):
        run.sample()


def test_a_closed_run_computes_nothing():
    run = begun()
    run.prefill(64)
    run.close()
    run.close()
    with pytest.raises(AssertionError):
        run.prefill(70)
    with pytest.raises(AssertionError):
        run.sample()


def test_a_prompt_with_media_is_not_served_as_text():
    engine = engine_of("llama", torch.float32)
    prompt = Prompt.of([1, 2, 3], (MediaSpan(0, 2, MediaName(b"m" * 32)),))
    with pytest.raises(AssertionError):
        HfRun(engine._model, engine._table, prompt, Sampling(), choose=greedy)
