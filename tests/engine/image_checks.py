"""What must hold of every model that sees: checks that tests make, and mutants must fail."""

from functools import cache

import torch
from computed import Computed, as_read, assert_equal, subject_of, supply
from torch.nn.functional import pad
from transformers import DynamicCache

from surefoot.engine.hf.weights import host_tensor
from surefoot.testing.engine_contract import raw
from surefoot.testing.families import family, image, shown

STEP = 64  # tokens in a block, in all families that see
ANSWER_TOKENS = 8


@cache
def layouts(name):
    """Return prompts whose images lie in every way to the ends of blocks, with their items."""
    first, second, third = image(name, 1), image(name, 2, 3, 7), image(name, 3, 6, 2)
    long = image(name, 4, 9, 10)
    return {
        "inside": shown(20, first, 90),
        "across": shown(50, first, 70),
        "starts at an end": shown(STEP - 1, first, 50),
        "ends at an end": shown(STEP - 1 - first.tokens, first, 70),
        "longer than a block": shown(30, long, 50),
        "at the prompt's end": shown(50, first),
        "one token behind": shown(STEP - 1 - first.tokens, first),
        "three": shown(10, first, 25, second, 42, third, 9),
    }


def restored_is_cold(name, dtype, attention, layout):
    """Restore a prompt's own parts at every boundary."""
    subject = subject_of(name, dtype, attention)
    prompt, media = layouts(name)[layout]
    cold = Computed(subject, prompt, media)
    stored = as_read(cold.stored)
    before = raw(stored)
    ends = [end for end in subject.ends(prompt) if end < len(prompt)]
    assert ends, layout
    for boundary in ends:
        needed = subject.needed(prompt, boundary, stored)
        warm = Computed(subject, prompt, media, boundary=boundary, parts=needed)
        assert_equal(warm, cold, (layout, boundary))
        assert raw(warm.stored) == raw([one for one in cold.stored if one.start >= boundary])
    assert raw(stored) == before


def donor_leaves_no_trace(subject, donor, heir):
    """Restore ``heir`` from what ``donor`` left, wherever their blocks have one name.

    Returns how many tokens they share, by name.
    """
    prompt, media = heir
    shared = [
        end
        for end, ours, theirs in zip(
            subject.ends(prompt), subject.names(prompt), subject.names(donor[0]), strict=False
        )
        if ours == theirs
    ]
    left = as_read(Computed(subject, *donor, tokens=2).stored)
    cold = Computed(subject, prompt, media)
    # One name, one state: whatever follows, and whether it holds images.
    for end in shared:
        assert raw([one for one in left if one.end == end]) == raw(
            [one for one in cold.stored if one.end == end]
        )
    for boundary in (end for end in shared if end < len(prompt)):
        needed = subject.needed(prompt, boundary, left)
        warm = Computed(subject, prompt, media, boundary=boundary, parts=needed)
        assert_equal(warm, cold, boundary)
    return max(shared, default=0)


def agrees_with_one_pass(name, layout, attention="sdpa"):
    """Hold logits of prompt and answer against transformers' own call on all of it, in float32."""
    subject = subject_of(name, torch.float32, attention)
    prompt, media = layouts(name)[layout]
    ours = Computed(subject, prompt, media)
    theirs = official(subject, prompt, media, ours.tokens)
    worst = (torch.stack(ours.logits) - theirs).abs().max().item()
    assert worst <= family(name).tolerance, (layout, worst)


def official(subject, prompt, media, answer):
    """Return logits after the prompt and after each token of the answer, from one plain call."""
    model = subject.model
    ids = torch.tensor([[*prompt.tokens(), *answer]])
    kinds = torch.zeros_like(ids)
    for span in prompt.media:
        kinds[:, span.start : span.end] = 1
    try:
        with torch.inference_mode():
            output = model(
                input_ids=ids,
                mm_token_type_ids=kinds,
                cache=DynamicCache(config=model.config),
                use_cache=True,
                logits_to_keep=len(answer) + 1,
                **as_processed(subject.name, media),
            )
    finally:
        forget(model)
    return output.logits[0]


def as_processed(name, media):
    """Return images as the family's own processor hands them to its model, all in one."""
    images = [host_tensor(item.dtype, item.shape, item.data) for item in media]
    if not name.startswith("gemma4"):
        grids = torch.tensor([item.grid for item in media])
        return {"pixel_values": torch.cat(images), "image_grid_thw": grids}
    most = max(len(one) for one in images)
    pixels, places = [], []
    for item, one in zip(media, images, strict=True):
        y, x = torch.meshgrid(*map(torch.arange, item.grid), indexing="ij")
        pixels.append(pad(one, (0, 0, 0, most - len(one))))
        place = torch.stack([x, y], dim=-1).reshape(-1, 2)
        places.append(pad(place, (0, 0, 0, most - len(one)), value=-1))
    return {"pixel_values": torch.stack(pixels), "image_position_ids": torch.stack(places)}


def forget(model):
    """Take away what transformers' own way of calling a model leaves on it."""
    if "rope_deltas" in vars(model.model):
        model.model.rope_deltas = None


def text_after_images_is_cold(name):
    """Take a turn of text before and after one with images, and one while that is under way."""
    subject = subject_of(name, torch.float32, "sdpa")
    text, none = shown(STEP + 20)
    before = Computed(subject, text, none)
    prompt, media = layouts(name)["three"]
    Computed(subject, prompt, media)
    assert_equal(Computed(subject, text, none), before, "after")
    under_way = subject.run(prompt, media)
    for end in (*subject.ends(prompt), len(prompt)):
        supply(under_way, subject, prompt, media, end)
        under_way.prefill(end)
    under_way.feed(under_way.sample().token)
    assert_equal(Computed(subject, text, none), before, "between")
