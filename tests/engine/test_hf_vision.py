"""An engine that sees: its contract, its name, its start-up checks, and how it is loaded."""

import re
from functools import cache

import pytest
import torch
from computed import DTYPES
from image_checks import layouts
from safetensors.torch import load_file, save_file

from surefoot.engine import Engine, Sampling
from surefoot.engine.hf import HfEngine, load_engine, stock_decode
from surefoot.engine.hf import engine as room
from surefoot.engine.hf import fingerprint as start_up
from surefoot.engine.hf.attention import folds
from surefoot.engine.hf.builtin import NAMES, default_block_tokens, spark_folder
from surefoot.engine.hf.fingerprint import Fingerprint, fingerprint
from surefoot.engine.hf.numerics import numerics
from surefoot.engine.hf.table import Unsupported, inspect
from surefoot.engine.hf.vision import Vision, small_item, vision_of
from surefoot.errors import EngineError, SetupError
from surefoot.prompt import Prompt
from surefoot.state import ROWS, Component, ComponentSchema, Features
from surefoot.testing.engine_contract import EngineContract
from surefoot.testing.families import (
    IMAGE_FAMILIES,
    IMAGE_TOKEN,
    TEXT_TOKENS,
    image,
    model,
    shown,
)

torch.set_num_threads(1)

BOTH_WAYS = "gemma4_images_both_ways"
BLOCK = 64


def engine_of(name, dtype=torch.float32, *, built=None, block_tokens=BLOCK):
    return HfEngine(
        built if built is not None else model(name, dtype, "sdpa"),
        tokenizer_source="somewhere",
        threads=1,
        block_tokens=block_tokens,
        progress=lambda _: None,
        clock=float,
    )


shared_engine = cache(engine_of)


class TestSeeingContract(EngineContract):
    vocabulary = TEXT_TOKENS
    placeholder = IMAGE_TOKEN

    @pytest.fixture(params=["qwen3_5_images", BOTH_WAYS])
    def engine(self, request):
        self.name = request.param
        return shared_engine(request.param, torch.bfloat16)

    def image(self, engine, seed):
        return image(self.name, seed)

    def lengths(self, engine):
        return [engine.block_tokens + 1, 3 * engine.block_tokens]


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_family_that_sees_is_served_with_a_cache(name, dtype):
    engine: Engine = shared_engine(name, dtype)
    assert engine.unsupported is None
    assert engine.groups
    assert engine.atomic_spans is (name == BOTH_WAYS)
    deepstack = {"qwen3_vl": 3, "qwen3_vl_moe": 2}.get(name, 0)
    names = ["features", *(f"deepstack-{layer}" for layer in range(deepstack))]
    kind = str(dtype).removeprefix("torch.")
    assert engine.features.components == tuple(
        ComponentSchema(one, kind, (ROWS, 64)) for one in names
    )


def test_a_model_of_text_takes_no_images():
    engine = engine_of("llama")
    assert engine.features is None
    assert engine.atomic_spans is False
    with pytest.raises(AssertionError, match="text only"):
        engine.encode(image("qwen3_vl", 1))
    assert vision_of(model("llama", torch.float32, "sdpa")) is None


def test_features_are_the_callers_own():
    engine = shared_engine("qwen3_vl", torch.float32)
    picture = image("qwen3_vl", 1)
    features = engine.encode(picture)
    assert all(type(one.data) is bytes for one in features.components)
    assert engine.encode(picture) == features


def test_the_tower_computes_with_the_engines_threads():
    engine = shared_engine("qwen3_vl", torch.float32)
    torch.set_num_threads(2)
    engine.encode(image("qwen3_vl", 1))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma4_images"])
def test_an_item_that_no_tower_of_this_family_takes_is_a_bug(name):
    vision = vision_of(model(name, torch.float32, "sdpa"))
    good = image(name, 1)
    for changes in (
        {"kind": "video"},
        {"tokens": good.tokens + 1},
        {"grid": (*good.grid[:-1], good.grid[-1] + 6)},
        {"shape": (good.shape[0], good.shape[1] + 1)},
    ):
        fields = {field: getattr(good, field) for field in good.__slots__}
        with pytest.raises(AssertionError):
            vision.encode(type(good)(**fields | changes))


def test_a_tower_that_fails_is_an_engine_error(monkeypatch):
    engine = shared_engine("qwen3_vl", torch.float32)

    def failing(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._loaded, "get_image_features", failing)
    with pytest.raises(EngineError, match="the vision tower failed: out of memory"):
        engine.encode(image("qwen3_vl", 1))
    with pytest.raises(EngineError, match="out of memory"):
        vision_of(engine._loaded)


def test_the_small_image_has_six_tokens_and_is_always_the_same():
    for name in IMAGE_FAMILIES:
        vision = vision_of(model(name, torch.float32, "sdpa"))
        assert vision.tower.tokens(vision.small.grid) == vision.small.tokens == 6
    first = small_item((1, 4, 6), 96, tokens=6)
    assert first == small_item((1, 4, 6), 96, tokens=6)
    values = torch.frombuffer(bytearray(first.data), dtype=torch.float32)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert values.std() > 0.2


@pytest.mark.parametrize("name", ["qwen3_vl", BOTH_WAYS])
def test_the_name_commits_to_what_the_tower_computes(name, monkeypatch):
    plain = engine_of(name)
    assert engine_of(name).model == plain.model
    stock = Vision.encode

    def rounded(self, item):
        features = stock(self, item)
        first, *rest = features.components
        changed = Component(
            first.name, first.dtype, first.shape, bytes([first.data[0] ^ 1]) + first.data[1:]
        )
        return Features((changed, *rest))

    monkeypatch.setattr(Vision, "encode", rounded)
    other = engine_of(name)
    assert other.unsupported is None
    assert other.model != plain.model


@pytest.mark.parametrize("context_tokens", [4096, BLOCK + 2])  # the second has no room for an image
def test_a_towers_weight_that_the_text_part_never_sees_changes_the_fingerprint(context_tokens):
    digests = set()
    for change in (0.0, 0.5):
        built = IMAGE_FAMILIES["qwen3_vl"].build(torch.float32, "sdpa")
        with torch.no_grad():
            built.get_parameter("model.visual.merger.linear_fc2.bias").add_(change)
        found = fingerprint(
            built,
            inspect(built, block_tokens=BLOCK),
            vision=vision_of(built),
            block_tokens=BLOCK,
            context_tokens=context_tokens,
            clock=float,
        )
        assert found.mismatch is found.unsteady is None
        digests.add(found.digest)
    assert len(digests) == 2


def test_a_tower_that_does_not_repeat_itself_means_no_cache(monkeypatch):
    stock, calls = Vision.encode, []

    def drifting(self, item):
        calls.append(item)
        features = stock(self, item)
        *rest, last = features.components
        data = bytes([last.data[0] ^ (len(calls) % 2)]) + last.data[1:]
        return Features((*rest, Component(last.name, last.dtype, last.shape, data)))

    monkeypatch.setattr(Vision, "encode", drifting)
    engine = engine_of("qwen3_vl")
    assert engine.unsupported == "the vision tower did not repeat deepstack-2 of an image"
    assert engine.groups == ()
    assert engine.features is not None  # it still sees


def test_what_start_up_finds_wrong_is_why_there_is_no_cache(monkeypatch):
    found = Fingerprint(b"f" * 32, None, 1.0, "features of an image")
    monkeypatch.setattr(room, "fingerprint", lambda *_, **__: found)
    assert engine_of("gemma4_images").unsupported == (
        "the vision tower did not repeat features of an image"
    )


@pytest.mark.parametrize("block_tokens", [4, 7, 32])
@pytest.mark.parametrize("name", ["qwen3_5_images", BOTH_WAYS])
def test_blocks_shorter_than_the_small_image_are_served_as_well(name, block_tokens):
    engine = engine_of(name, block_tokens=block_tokens)
    assert engine.unsupported is None
    assert engine.groups


@pytest.mark.parametrize("context", [20, 66, 70, 72, 100, 147])
def test_a_context_too_short_for_the_small_image_is_no_failure(context):
    built = model("qwen3_vl", torch.float32, "sdpa")
    found = fingerprint(
        built,
        None,
        vision=vision_of(built),
        block_tokens=BLOCK,
        context_tokens=context,
        clock=float,
    )
    assert found.mismatch is found.unsteady is None


def test_the_start_up_prompt_shows_the_small_image_in_its_second_block(monkeypatch):
    shown_at_start = []

    class Noted(start_up.HfRun):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            shown_at_start.append(arguments[2])

    monkeypatch.setattr(start_up, "HfRun", Noted)
    engine_of("qwen3_vl")
    assert len(shown_at_start) == 2  # cold, and restored
    for prompt in shown_at_start:
        (span,) = prompt.media
        assert BLOCK < span.start < span.end < 2 * BLOCK
        tokens = prompt.tokens()
        assert tokens[span.start : span.end] == [IMAGE_TOKEN] * 6
        assert tokens.count(IMAGE_TOKEN) == 6


def test_start_up_computes_by_the_grid_that_prompts_are_computed_by(monkeypatch):
    computed = []

    class Noted(start_up.HfRun):
        def prefill(self, end):
            computed.append(end)
            super().prefill(end)

    monkeypatch.setattr(start_up, "HfRun", Noted)
    engine_of(BOTH_WAYS, block_tokens=4)  # the image is [5, 11)
    assert computed == [4, 11, 12, 16, 20, 24, 25, 11, 12, 16, 20, 24, 25]


def test_the_small_image_is_shown_wherever_it_fits():
    vision = vision_of(model("qwen3_vl", torch.float32, "sdpa"))
    for length, images in ((BLOCK + 6, 0), (BLOCK + 7, 1), (BLOCK + 8, 1)):
        prompt = start_up._with_image(Prompt.of(range(length)), vision, BLOCK)
        assert len(prompt) == length
        assert len(prompt.media) == images


def test_pooled_state_and_images_that_must_be_whole_do_not_go_together():
    pooling = model("deepseek_v4", torch.float32, "eager")
    assert not isinstance(inspect(pooling, block_tokens=128), Unsupported)
    found = inspect(pooling, block_tokens=128, atomic_spans=True)
    assert isinstance(found, Unsupported)
    assert "pools tokens" in found.reason


def test_an_engine_asks_for_laws_that_its_grid_allows(monkeypatch):
    asked = []
    monkeypatch.setattr(
        room, "inspect", lambda *at, **how: asked.append(how) or inspect(*at, **how)
    )
    for name in (BOTH_WAYS, "gemma4_images"):
        engine_of(name)
    assert [how["atomic_spans"] for how in asked] == [True, False]


def test_what_a_model_sees_with_is_among_the_facts():
    for name, rule in (("qwen3_vl", "1: "), (BOTH_WAYS, "2: ")):
        built = model(name, torch.float32, "sdpa")
        plain = numerics(built, threads=1, block_tokens=BLOCK)
        seeing = numerics(built, threads=1, block_tokens=BLOCK, vision=vision_of(built))
        assert seeing["vision attention"] == "sdpa"
        assert seeing["grid"].startswith(rule)
        changed = {fact for fact in plain if seeing[fact] != plain[fact]}
        assert changed == ({"grid"} if name == BOTH_WAYS else set())


def test_a_text_part_that_folds_its_heads_does_so_behind_a_tower():
    for name in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5_images", "qwen3_5_moe_images"):
        built = model(name, torch.float32, "sdpa")
        assert folds(built)
        text = built.model.language_model
        assert text.config is built.config.get_text_config(decoder=True)


def test_transformers_own_loop_is_timed_for_text_alone():
    with pytest.raises(AssertionError, match="text"):
        stock_decode(shared_engine("qwen3_vl", torch.float32), range(70), 2, float)


def loaded(source, **changes):
    arguments = {"threads": 1, "block_tokens": BLOCK, "dtype": None, "attention": None}
    return load_engine(
        str(source),
        device="cpu",
        cache_folder=spark_folder() / "unused",
        progress=lambda _: None,
        clock=float,
        **arguments | changes,
    )


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5_images", "gemma4_images"])
def test_a_saved_model_is_loaded_whole(name, tmp_path):
    built = model(name, torch.float32, "sdpa")
    built.save_pretrained(tmp_path)
    engine = loaded(tmp_path)
    assert engine.unsupported is None
    assert type(engine._loaded) is type(built)
    assert engine.features is not None
    prompt, media = layouts(name)["across"]
    answers = []
    for one in (engine, shared_engine(name, torch.float32)):
        assert one.encode(media[0]) == engine.encode(media[0])
        run = one.begin(prompt, Sampling(temperature=0.0, top_logprobs=3), media)
        run.supply(media[0].name, one.encode(media[0]))
        run.prefill(BLOCK)
        run.prefill(len(prompt))
        answers.append(run.sample())
    assert answers[0] == answers[1]


@pytest.mark.parametrize("part", ["visual", "language_model"])
def test_a_checkpoint_without_some_tensor_is_refused(part, tmp_path):
    model("qwen3_vl", torch.bfloat16, "sdpa").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    lost = next(key for key in sorted(tensors) if f".{part}." in key)
    del tensors[lost]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(SetupError, match="lacks " + re.escape(lost)):
        loaded(tmp_path)


def test_built_in_names_and_their_blocks():
    assert set(NAMES) == {"smollm2", "spark"}
    assert default_block_tokens("spark") == 16
    assert default_block_tokens("smollm2") == default_block_tokens("owner/name") == 256


def test_spark_is_served_by_its_name():
    engine = loaded("spark", block_tokens=default_block_tokens("spark"))
    assert engine.unsupported is None
    assert engine.tokenizer_source == str(spark_folder())
    assert engine.features.components[0].shape == (ROWS, 192)
    assert engine.atomic_spans is False


def test_the_image_of_a_prompt_that_fits_is_not_supplied_to_a_prompt_of_text():
    engine = shared_engine("qwen3_vl", torch.float32)
    prompt, _ = shown(70)
    run = engine.begin(prompt, Sampling())
    with pytest.raises(KeyError):
        run.supply(image("qwen3_vl", 1).name, engine.encode(image("qwen3_vl", 1)))
    text = engine_of("llama").begin(Prompt.of([1, 2]), Sampling())
    with pytest.raises(AssertionError, match="text"):
        text.supply(image("qwen3_vl", 1).name, engine.encode(image("qwen3_vl", 1)))
