"""Training reads what serving will read, and gives the same bytes twice."""

import os
import subprocess
import sys
from random import Random
from subprocess import PIPE, STDOUT

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from models.spark import facts, faster, looking, small_talk
from models.spark.batches import IGNORED, Encoder, patches
from models.spark.checkpoint import CHECKPOINT
from models.spark.conversation import IMAGE, Conversation, Exchange
from models.spark.fonts import BUILT_IN
from models.spark.hidden_code import hidden_code
from models.spark.network import starting_network

ROOT = CHECKPOINT.parents[4]
SIZES = [(1, 1), (6, 4), (4, 6), (32, 32), (64, 64), (96, 48), (48, 96), (200, 120), (256, 31)]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture
def stock(tokenizer):
    """A network that is taught fast functions, which are taken back afterwards."""
    places = (
        (qwen, "torch_chunk_gated_delta_rule"),
        (qwen, "causal_conv1d_fn"),
        (qwen.Qwen3_5VisionPatchEmbed, "forward"),
        (qwen.Qwen3_5VisionAttention, "forward"),
    )
    before = [vars(place)[name] for place, name in places]
    yield starting_network(tokenizer, 1).eval()
    for (place, name), value in zip(places, before, strict=True):
        setattr(place, name, value)


def conversations():
    rng = Random(2)
    yield looking.one_picture(rng, BUILT_IN, "digit")
    yield looking.two_pictures(rng, BUILT_IN)
    yield facts.facts(rng, 3, 8, 3)
    yield hidden_code(rng, 120)
    yield small_talk.chat(rng)
    # Images of one grid with another's between them.
    images = tuple(Image.new("RGB", size, "red") for size in ((64, 64), (96, 96), (64, 64)))
    yield Conversation(Exchange(IMAGE * 3, "Red").turns, images)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_patches_are_those_of_the_stock_processor_bit_for_bit(size):
    noise = np.random.default_rng(4).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    stock = AutoImageProcessor.from_pretrained(CHECKPOINT)(images=[image], return_tensors="pt")
    values, grid = patches(image)
    assert stock["image_grid_thw"].tolist() == [[1, *grid]]
    assert torch.equal(torch.from_numpy(values), stock["pixel_values"])
    assert 4 <= grid.tokens <= 9


def test_a_row_is_what_the_template_renders_and_labels_are_the_answers(tokenizer):
    encoder = Encoder(tokenizer)
    for conversation in conversations():
        batch = encoder.batch([conversation])
        messages = [{"role": turn.role, "content": turn.text} for turn in conversation.turns]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        for image in conversation.images:
            text = text.replace("<|image_pad|>", "\0" * patches(image)[1].tokens, 1)
        ids = tokenizer(text.replace("\0", "<|image_pad|>"))["input_ids"]
        assert batch.inputs["input_ids"].tolist() == [ids]

        answers = [turn.text for turn in conversation.turns if turn.role == "assistant"]
        labels = batch.labels[0][batch.labels[0] != IGNORED]
        assert tokenizer.decode(labels) == "".join(f"{answer}<|im_end|>" for answer in answers)


def test_positions_are_the_networks_own(tokenizer, stock):
    encoder = Encoder(tokenizer)
    for conversation in conversations():
        inputs = encoder.batch([conversation]).inputs
        if conversation.images:
            own, _ = stock.model.get_rope_index(
                inputs["input_ids"],
                mm_token_type_ids=inputs["mm_token_type_ids"],
                image_grid_thw=inputs["image_grid_thw"],
            )
        else:
            own = torch.arange(inputs["input_ids"].shape[1]).expand(3, 1, -1)
        assert torch.equal(inputs["position_ids"], own)


def test_fast_functions_compute_what_the_stock_ones_do(tokenizer, stock):
    batch = Encoder(tokenizer).batch(list(conversations()))
    with torch.no_grad():
        slow = stock.model(**batch.inputs, use_cache=False).last_hidden_state
        faster.make_training_fast()
        fast = stock.model(**batch.inputs, use_cache=False).last_hidden_state
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_two_processes_with_one_seed_write_the_same_bytes(tmp_path):
    running = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "models.spark", "text", "--text-steps=2"]
        command.append(f"--work={tmp_path / hash_seed}")
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_WAIT_POLICY": "passive"}
        running.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT)
        )
    for process in running:
        said, _ = process.communicate()
        assert process.returncode == 0, said.decode()
    first, second = (tmp_path / hash_seed / "text.safetensors" for hash_seed in ("1", "2"))
    assert first.read_bytes() == second.read_bytes()
