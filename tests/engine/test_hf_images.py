"""The differential test with images (I5), over every family that sees.

Cold and restored runs must agree in the last logits, in every tensor, counter and flag of the live
cache, and in eight greedy tokens with their logits, wherever images lie and whoever left the state.
"""

import pytest
import torch
from computed import DTYPES, Computed, as_read, assert_equal, subject_of, supply
from image_checks import (
    STEP,
    agrees_with_one_pass,
    as_processed,
    donor_leaves_no_trace,
    forget,
    layouts,
    restored_is_cold,
    text_after_images_is_cold,
)

from surefoot.engine import Placed, Sampling
from surefoot.engine.hf import layers
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.towers import TOWERS
from surefoot.engine.hf.weights import host_tensor
from surefoot.prompt import MediaSpan, Prompt
from surefoot.state import Component, Features
from surefoot.testing.engine_contract import raw
from surefoot.testing.families import (
    IMAGE_FAMILIES,
    IMAGE_TOKEN,
    VIDEO_TOKEN,
    image,
    model,
    shown,
)
from surefoot.testing.live_state import same

torch.set_num_threads(1)

LAYOUTS = tuple(layouts("qwen3_vl"))
ATOMIC = "gemma4_images_both_ways"
families = pytest.mark.parametrize("name", IMAGE_FAMILIES)
FLOAT32, BFLOAT16 = DTYPES
# Served in bfloat16; float32 shows differences that rounding hides, and doubles the time.
dtypes = pytest.mark.parametrize(
    "dtype", [pytest.param(FLOAT32, marks=pytest.mark.long), BFLOAT16], ids=str
)


def test_every_family_that_sees_is_here():
    kinds = {model(name, torch.float32, "sdpa").config.model_type for name in IMAGE_FAMILIES}
    assert kinds == set(TOWERS)
    assert [name for name in IMAGE_FAMILIES if subject(name).atomic] == [ATOMIC]


def subject(name, dtype=torch.float32, attention="sdpa"):
    return subject_of(name, dtype, attention)


@families
@dtypes
def test_restored_is_cold_wherever_images_lie(name, dtype):
    for layout in LAYOUTS:
        restored_is_cold(name, dtype, "sdpa", layout)


@families
def test_blocks_compute_what_one_plain_call_computes(name):
    """What is exact must be right as well: of the prompt, and of eight tokens after it."""
    for layout in LAYOUTS:
        agrees_with_one_pass(name, layout)
    agrees_with_one_pass(name, "three", "eager")


def test_an_image_that_must_be_whole_moves_the_end_of_its_block():
    plain, whole = subject("gemma4_images"), subject(ATOMIC)
    for layout, ends in {
        "inside": (64, 64),
        "across": (64, 71),
        "starts at an end": (64, 64),
        "ends at an end": (64, 64),
        "longer than a block": (64, 121),
    }.items():
        prompt, _ = layouts(ATOMIC)[layout]
        assert (plain.ends(prompt)[0], whole.ends(prompt)[0]) == ends


def conversations(name):
    """Return pairs of prompts, and how many of the second's tokens the first's names cover."""
    x, y, z = (image(name, seed) for seed in (5, 6, 7))
    other = 22, 1  # as many tokens as an image and what begins and ends it, of another text
    return {
        "another image under the same text": (shown(70, x, 60), shown(70, y, 60), 64),
        "another image in the first block": (shown(7, x, 99), shown(7, y, 99), 0),
        "the second of two replaced": (shown(20, x, 40, y, 60), shown(20, x, 40, z, 60), 64),
        "the second of two removed": (shown(20, x, 40, y, 60), shown(20, x, 40, other, 60), 64),
        "the order of two swapped": (shown(70, x, 45, y, 50), shown(70, y, 45, x, 50), 64),
        "the same image again, later": (shown(20, x, 90), shown(20, x, 90, x, 40), 128),
        "an image under a text that had none": (shown(190), shown(130, x, 40), 128),
        "text alone after an image": (shown(130, x, 60), shown(191), 128),
        "text alone where an image was": (shown(70, x, 60), shown(70, other, 60), 64),
        "another grid of the same tokens": (
            shown(40, image(name, 8, 4, 5), 90),
            shown(40, image(name, 8, 5, 4), 90),
            0,
        ),
    }


ESSENTIAL = (
    "another image under the same text",
    "the second of two replaced",
    "the order of two swapped",
    "text alone after an image",
)


@families
@dtypes
def test_a_donor_leaves_no_trace(name, dtype):
    cases = conversations(name)
    if dtype is torch.float32:
        cases = {case: cases[case] for case in ESSENTIAL}
    for case, (donor, heir, shared) in cases.items():
        assert donor_leaves_no_trace(subject(name, dtype), donor, heir) == shared, case


@families
def test_with_eager_attention_it_is_the_same(name):
    restored_is_cold(name, torch.bfloat16, "eager", "three")
    donor, heir, shared = conversations(name)["the second of two replaced"]
    assert donor_leaves_no_trace(subject(name, torch.bfloat16, "eager"), donor, heir) == shared


@families
def test_an_image_decides_the_answer(name):
    """What was drawn is strong enough for the tests above to mean something."""
    at = subject(name)
    logits = {}
    for case, pieces in {
        "one": (30, image(name, 1), 50),
        "another": (30, image(name, 2), 50),
        "turned": (30, image(name, 1, 5, 4), 50),
        "none": (30, (22, 1), 50),
    }.items():
        logits[case] = Computed(at, *shown(*pieces), tokens=1).logits[0]
    cases = list(logits)
    for i, one in enumerate(cases):
        for other in cases[i + 1 :]:
            assert (logits[one] - logits[other]).abs().max() > 0.05, (one, other)


@families
@dtypes
def test_features_are_a_function_of_the_image_alone(name, dtype):
    at = subject(name, dtype)
    pictures = [image(name, 1), image(name, 2, 9, 10), image(name, 3, 2, 2)]
    first = [at.vision.encode(item) for item in pictures]
    again = [at.vision.encode(item) for item in reversed(pictures)][::-1]
    assert first == again
    assert len({bytes(one.components[0].data)[:64] for one in first}) == 3
    for item, features in zip(pictures, first, strict=True):
        assert at.vision.schema.mismatch(features, item.tokens) is None
    if dtype is torch.bfloat16:
        return  # in one call with others it is padded, and rounds differently
    with torch.inference_mode():
        together = at.model.get_image_features(**as_processed(name, pictures), return_dict=True)
    for features, expected in zip(first, together.pooler_output, strict=True):
        one = features.components[0]
        torch.testing.assert_close(
            host_tensor(one.dtype, one.shape, one.data), expected, atol=1e-4, rtol=1e-4
        )


@families
def test_nothing_of_an_image_is_left_on_the_model(name):
    text_after_images_is_cold(name)
    assert vars(subject(name).model.model).get("rope_deltas") is None


@families
def test_what_others_left_on_the_model_is_not_read(name):
    """Positions are passed even where a stale delta would be taken for them."""
    at = subject(name)
    prompt, media = layouts(name)["across"]
    before = Computed(at, prompt, media)
    at.model.model.rope_deltas = torch.tensor([[-63]])
    try:
        assert_equal(Computed(at, prompt, media), before, "stale")
    finally:
        forget(at.model)


@pytest.mark.parametrize("layout", ["longer than a block", "three"])
@pytest.mark.parametrize("name", ["qwen3_5_images", ATOMIC])
def test_stacks_are_as_large_after_a_restore_as_when_computed(monkeypatch, name, layout):
    """A block's length depends on its images, and the room made for it must too."""
    monkeypatch.setattr(layers, "capacity", lambda rows: rows)
    at = subject(name)
    prompt, media = layouts(name)[layout]
    ends = (*at.ends(prompt), len(prompt))
    names = {group.name for group in at.table.groups}
    cold, shapes, stored = at.run(prompt, media), {}, []
    for end in ends:
        start = cold.position
        supply(cold, at, prompt, media, end)
        cold.prefill(end)
        shapes[end] = stack_shapes(cold)
        if end in at.ends(prompt):
            stored += [Placed(start, end, part) for part in cold.cut(start, names)]
    assert len({str(one) for one in shapes.values()}) > 1
    for boundary in ends[:-1]:
        warm = at.run(prompt, media)
        warm.install(boundary, at.needed(prompt, boundary, stored))
        pointers = [data.data_ptr() for data in stacks_of(warm)]
        for end in ends[ends.index(boundary) + 1 :]:
            supply(warm, at, prompt, media, end)
            warm.prefill(end)
            assert stack_shapes(warm) == shapes[end], (boundary, end)
            if end == ends[ends.index(boundary) + 1]:
                assert [data.data_ptr() for data in stacks_of(warm)] == pointers


def stacks_of(run):
    return [stack.data for group in run._cache.stacks.values() for stack in group.values()]


def stack_shapes(run):
    return [tuple(data.shape) for data in stacks_of(run)]


@families
def test_the_beginning_of_a_prompt_is_computed_as_the_prompt_is(name):
    at = subject(name)
    prompt, media = layouts(name)["three"]
    whole = Computed(at, prompt, media)
    for end in at.ends(prompt):
        cut = Computed(at, prompt.upto(end), media, tokens=0)
        assert raw(cut.stored) == raw([one for one in whole.stored if one.end <= end])
    assert end > STEP


@families
def test_without_a_cache_the_answer_is_the_same(name):
    at = subject(name)
    prompt, media = layouts(name)["three"]
    expected = Computed(at, prompt, media)
    run = at.run(prompt, media, table=False)
    for end in (*at.ends(prompt), len(prompt)):
        supply(run, at, prompt, media, end)
        run.prefill(end)
    tokens = []
    for _ in expected.tokens:
        tokens.append(run.sample().token)
        run.feed(tokens[-1])
    assert tokens == expected.tokens
    assert same(run._logits, expected.logits[-1])


def with_last(features, **changes):
    *rest, last = features.components
    values = {"name": last.name, "dtype": last.dtype, "shape": last.shape, "data": last.data}
    return Features((*rest, Component(**values | changes)))


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma4_images"])
def test_ill_fitting_features_are_refused_and_change_nothing(name):
    at = subject(name)
    prompt, media = layouts(name)["inside"]
    good = at.encode(media[0])
    rows, width = good.components[0].shape
    run = at.run(prompt, media)
    for bad in (
        Features(good.components[:-1]),
        Features((*good.components, good.components[0])),
        with_last(good, name="other"),
        with_last(good, dtype="bfloat16", data=bytes(rows * width * 2)),
        with_last(good, shape=(width, rows)),
        with_last(good, shape=(rows - 1, width), data=bytes((rows - 1) * width * 4)),
    ):
        with pytest.raises(ValueError, match="components"):
            run.supply(media[0].name, bad)
        with pytest.raises(AssertionError, match="not supplied"):
            run.prefill(STEP)
    run.supply(media[0].name, good)
    run.prefill(STEP)
    with pytest.raises(KeyError):
        run.supply(image(name, 99).name, good)


def test_supplied_features_are_only_copied_from():
    at = subject("qwen3_vl")
    prompt, media = layouts("qwen3_vl")["inside"]
    expected = Computed(at, prompt, media)
    held = [bytearray(one.data) for one in at.encode(media[0]).components]
    lent = Features(
        tuple(
            Component(one.name, one.dtype, one.shape, data)
            for one, data in zip(at.encode(media[0]).components, held, strict=True)
        )
    )
    run = at.run(prompt, media)
    run.supply(media[0].name, lent)
    for data in held:
        data[:] = bytes(len(data))
    run.prefill(STEP)
    names = {group.name for group in at.table.groups}
    assert list(run.cut(0, names)) == [one.part for one in as_read(expected.stored)[: len(names)]]


def test_an_image_that_is_there_twice_is_supplied_once():
    picture = image("qwen3_5_images", 1)
    prompt, media = shown(10, picture, 70, picture, 30)
    at = subject("qwen3_5_images")
    expected = Computed(at, prompt, media)
    run = at.run(prompt, media)
    run.supply(picture.name, at.encode(picture))
    for end in (*at.ends(prompt), len(prompt)):
        run.prefill(end)
    run.sample()
    assert same(run._choose.seen[0], expected.logits[0])


@families
def test_a_generated_placeholder_is_a_token_like_any_other(name):
    run = subject(name).run(*shown(20))
    run.prefill(20)
    run.feed(IMAGE_TOKEN)
    run.feed(run.sample().token)
    assert run.position == 22


@pytest.mark.parametrize(
    ("ids", "spans"),
    [
        ([1, IMAGE_TOKEN, *[IMAGE_TOKEN] * 20, 2], [(2, 20)]),
        ([1, 2, *[IMAGE_TOKEN] * 20, 2], [(1, 20)]),
        ([1, *[IMAGE_TOKEN] * 20, 2], []),
        ([1, *[IMAGE_TOKEN] * 19, 2], [(1, 19)]),
        ([1, *[VIDEO_TOKEN] * 20, 2], [(1, 20)]),
        ([1, VIDEO_TOKEN, *[IMAGE_TOKEN] * 20, 2], [(2, 20)]),
        ([1, 2, 3], [(1, 1)]),
    ],
    ids=str,
)
def test_placeholders_outside_of_spans_are_a_bug(ids, spans):
    picture = image("qwen3_vl", 1)
    at = subject("qwen3_vl")
    media = tuple(MediaSpan(start, length, picture.name) for start, length in spans)
    with pytest.raises(AssertionError):
        at.run(Prompt.of(ids, media), [picture] * len(spans))


def test_a_prompt_without_its_items_is_a_bug():
    at = subject("qwen3_vl")
    prompt, media = layouts("qwen3_vl")["three"]
    for given in ([], media[:2], media[::-1]):
        with pytest.raises(AssertionError):
            at.run(prompt, given)
    text = subject_of("llama", torch.float32, "sdpa")
    with pytest.raises(AssertionError, match="vision tower"):
        HfRun(text.model, text.table, prompt, Sampling(), choose=len, media=media)
