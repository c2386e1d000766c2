"""What a forward call says of image tokens: positions and kinds are those of transformers' own code
for the whole prompt, and a block's are the same whatever follows it (I5).
"""

import itertools

import pytest
import torch
from computed import subject_of
from image_checks import STEP, layouts

from surefoot.engine.hf.sight import Sight
from surefoot.engine.hf.towers import RotaryPlaces, TokenKinds, sees
from surefoot.prompt import MediaName, MediaSpan, Prompt
from surefoot.testing.families import IMAGE_FAMILIES, image, model, shown
from surefoot.testing.live_state import same

QWEN = [name for name in IMAGE_FAMILIES if name.startswith("qwen")]
GEMMA = [name for name in IMAGE_FAMILIES if name.startswith("gemma")]
HOST = torch.device("cpu")


def subject(name):
    return subject_of(name, torch.float32, "sdpa")


def sight(name, prompt, media):
    seen = Sight(subject(name).vision, prompt, media)
    for item in media[: len(prompt.media)]:
        seen.supply(item.name, subject(name).encode(item))
    return seen


@pytest.mark.parametrize("name", QWEN)
@pytest.mark.parametrize("layout", layouts("qwen3_vl"))
def test_positions_are_those_that_transformers_computes(name, layout):
    prompt, media = layouts(name)[layout]
    ids = torch.tensor([prompt.tokens()])
    kinds = torch.zeros_like(ids)
    for span in prompt.media:
        kinds[:, span.start : span.end] = 1
    expected, delta = subject(name).model.model.get_rope_index(
        ids, mm_token_type_ids=kinds, image_grid_thw=torch.tensor([one.grid for one in media])
    )
    seen = sight(name, prompt, media)
    count = len(prompt)
    positions = seen.arguments(0, count)["position_ids"]
    assert positions[0].tolist() == [list(range(count))]
    assert same(positions[1:], expected)
    for start, end in ((0, STEP), (STEP, count), (count - 1, count)):
        assert same(seen.arguments(start, end)["position_ids"], positions[:, :, start:end])
    after = seen.arguments(count + 3, count + 4)["position_ids"]
    rotary = count + 3 + delta.item()
    assert after.tolist() == [[[count + 3]], [[rotary]], [[rotary]], [[rotary]]]


def places(spans, length, *grids):
    named = tuple(MediaSpan(start, count, MediaName(b"m" * 32)) for start, count in spans)
    return RotaryPlaces(Prompt.of(range(length), named), grids, HOST)


def rotary(subject, start, end):
    return [tuple(column) for column in subject.arguments(start, end)["position_ids"][1:, 0].T]


def test_positions_by_hand():
    """Two tokens of text, an image of 2 x 3, one token, an image of 1 x 1 right at the end."""
    laid = places([(2, 6), (9, 1)], 10, (1, 2, 3), (1, 1, 1))
    image_at_2 = [(2, 2 + row, 2 + column) for row in range(2) for column in range(3)]
    expected = [(0,) * 3, (1,) * 3, *image_at_2, (5,) * 3, (6,) * 3]
    assert [tuple(map(int, one)) for one in rotary(laid, 0, 10)] == expected
    assert [tuple(map(int, one)) for one in rotary(laid, 10, 12)] == [(7,) * 3, (8,) * 3]


def test_images_that_touch_are_two_images():
    """Transformers 5.24 takes neighbours for one image (``get_rope_index`` groups by kind)."""
    laid = places([(0, 4), (4, 2)], 6, (1, 2, 2), (1, 1, 2))
    expected = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (2, 2, 2), (2, 2, 3)]
    assert [tuple(map(int, one)) for one in rotary(laid, 0, 6)] == expected


def test_a_prompts_beginning_has_the_positions_of_the_whole():
    """For every small prompt of two images, and wherever it is cut."""
    for before, between, after in itertools.product(range(3), range(3), range(2)):
        spans = [(before, 6), (before + 6 + between, 2)]
        length = before + 8 + between + after
        grids = (1, 2, 3), (1, 2, 1)
        whole = places(spans, length, *grids)
        prompt = Prompt.of(
            range(length), tuple(MediaSpan(*one, MediaName(b"m" * 32)) for one in spans)
        )
        for end in range(1, length + 1):
            cut = prompt.upto(end)
            part = RotaryPlaces(cut, grids[: len(cut.media)], HOST)
            assert rotary(part, 0, end) == rotary(whole, 0, end), (spans, length, end)


def test_generated_tokens_are_not_asked_for_with_the_prompts():
    with pytest.raises(AssertionError):
        places([], 5).arguments(3, 6)


@pytest.mark.parametrize("name", GEMMA)
def test_kinds_reach_back_to_the_first_token(name):
    prompt, media = layouts(name)["across"]
    seen = sight(name, prompt, media)
    for start, end in ((0, STEP), (STEP, len(prompt)), (len(prompt), len(prompt) + 1)):
        kinds = seen.arguments(start, end)["mm_token_type_ids"]
        (span,) = prompt.media
        assert kinds.tolist() == [[int(span.start <= at < span.end) for at in range(end)]]
    assert TokenKinds(Prompt.of([1, 2]), HOST).arguments(0, 2)["mm_token_type_ids"].sum() == 0


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_a_block_of_text_is_called_alike_whatever_else_the_prompt_holds(name):
    picture = image(name, 1)
    calls = [
        sight(name, *shown(STEP, *more)).arguments(0, STEP)
        for more in ((), (5,), (picture,), (70, picture, 3, picture))
    ]
    for call in calls:
        assert call.keys() == calls[0].keys()
        assert "mm_encoder_outputs" not in call
        assert all(same(call[key], calls[0][key]) for key in call)


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma4_images"])
def test_a_block_is_given_the_rows_of_its_own_image_tokens(name):
    prompt, media = layouts(name)["three"]
    seen = sight(name, prompt, media)
    made = {item.name: subject(name).encode(item) for item in media}
    count = 0
    for start, end in ((0, 64), (64, 128), (128, len(prompt))):
        output = seen.arguments(start, end)["mm_encoder_outputs"]["image"]
        columns = [output.pooler_output, *output.deepstack_features]
        spans = [one for one in prompt.media if one.start < end and one.end > start]
        for column, component in zip(columns, range(len(columns)), strict=True):
            for rows, span in zip(column, spans, strict=True):
                first = max(start, span.start) - span.start
                whole = made[span.media].components[component]
                width = whole.shape[1] * 4
                held = rows.numpy().tobytes()
                assert held == bytes(whole.data)[first * width : first * width + len(held)]
                count += len(rows) if component == 0 else 0
        assert len(columns) == len(made[spans[0].media].components)
    assert count == sum(item.tokens for item in media)


def test_which_models_see():
    assert all(sees(model(name, torch.float32, "sdpa").config) for name in IMAGE_FAMILIES)
    assert not sees(model("qwen3_5", torch.float32, "sdpa").config)
    blind = IMAGE_FAMILIES["gemma4_images"].build(torch.float32, "sdpa", vision_config=None)
    assert not sees(blind.config)
