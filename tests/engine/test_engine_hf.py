"""The engine on saved models: its name, its contract's properties, and its refusal to cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import BLOCK, build, save

from surefoot.engine import Engine, Sampling
from surefoot.engine.hf import HfEngine, load_engine
from surefoot.engine.hf import engine as room
from surefoot.engine.hf import fingerprint as start_up
from surefoot.engine.hf.engine import NUMERICS, UNBOUNDED_CONTEXT, canonical_config
from surefoot.engine.hf.fingerprint import Fingerprint
from surefoot.engine.hf.measured import stock_decode
from surefoot.identity import model_name
from surefoot.prompt import Prompt
from surefoot.state import Group


def engine_of(model=None, *, threads=2, block_tokens=BLOCK, **changes):
    return HfEngine(
        build(**changes) if model is None else model,
        tokenizer_source="somewhere",
        threads=threads,
        block_tokens=block_tokens,
        progress=lambda _: None,
        clock=float,
    )


def loaded(folder, **changes):
    arguments = {"threads": 2, "block_tokens": BLOCK, "dtype": None, "attention": None}
    return load_engine(
        str(folder),
        device="cpu",
        cache_folder=folder / "unused",
        progress=lambda _: None,
        clock=float,
        **arguments | changes,
    )


def answer(engine, tokens, count=8, sampling=None):
    prompt = Prompt.of(tokens)
    run = engine.begin(prompt, sampling or Sampling(temperature=0.0))
    for end in (*range(BLOCK, len(prompt), BLOCK), len(prompt)):
        run.prefill(end)
    chosen = []
    for _ in range(count):
        drawn = run.sample()
        chosen.append(drawn)
        run.feed(drawn.token)
    run.close()
    return chosen


def test_it_is_an_engine():
    engine: Engine = engine_of()
    assert len(engine.model) == 32
    assert engine.block_tokens == BLOCK
    assert engine.context_tokens == 256
    assert engine.atomic_spans is False
    assert engine.unsupported is None
    assert engine.stop_tokens == {1}
    assert engine.prefill_tokens_per_s > 0
    assert [type(group) for group in engine.groups] == [Group]


def test_the_name_is_the_same_for_the_same_model():
    assert engine_of().model == engine_of().model


def test_the_ingredients_are_all_that_the_name_was_made_of():
    engine = engine_of()
    made_of = dict(engine.ingredients)
    digests = {key: bytes.fromhex(made_of.pop(key)) for key in ("weights", "fingerprint")}
    config = made_of.pop("config")
    assert all(key.startswith(NUMERICS) for key in made_of)
    numerics = {key.removeprefix(NUMERICS): fact for key, fact in made_of.items()}
    assert engine.model == model_name(config=config, numerics=numerics, **digests)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"dtype": torch.bfloat16},
        {"rms_norm_eps": 1e-4},
        {"attn_implementation": "eager"},
        {"threads": 1},
        {"block_tokens": 32},
        {"max_position_embeddings": 512},
    ],
    ids=str,
)
def test_what_decides_bits_changes_the_name(changes):
    try:
        assert engine_of(**changes).model != engine_of().model
    finally:
        torch.set_num_threads(2)


def test_a_weight_that_no_start_up_token_touches_changes_the_name(tmp_path):
    folder = save(tmp_path / "tiny")
    plain = loaded(folder).model
    assert loaded(folder).model == plain
    used = set(start_up._prompt(build(), 2 * BLOCK + start_up.TAIL_TOKENS).tokens())
    unused = next(token for token in range(259) if token not in used)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][unused, 7] += 2**-20
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert loaded(folder).model != plain


def test_what_was_computed_at_start_up_changes_the_name(monkeypatch):
    names = set()
    for digest in (b"f" * 32, b"g" * 32):
        found = Fingerprint(digest, None, 100.0)
        monkeypatch.setattr(room, "fingerprint", lambda *_, found=found, **__: found)
        names.add(engine_of().model)
    assert len(names) == 2


def test_where_a_model_lies_and_what_its_tokenizer_is_do_not_change_the_name(tmp_path):
    first, second = save(tmp_path / "one"), save(tmp_path / "two")
    (second / "tokenizer_config.json").write_text("{}")
    (second / "chat_template.jinja").write_text("other")
    config = json.loads((second / "config.json").read_text())
    config |= {"_name_or_path": "/elsewhere", "transformers_version": "5.0.0"}
    (second / "config.json").write_text(json.dumps(config))
    assert loaded(first).model == loaded(second).model


def test_a_configuration_is_canonical_without_paths_and_versions():
    plain = {"b": [1, {"y": 2.5, "x": None}], "a": "ü", "dtype": torch.bfloat16}
    noisy = dict(reversed(plain.items())) | {
        "_name_or_path": "/somewhere",
        "transformers_version": "5.24.0",
        "b": (1, {"_name_or_path": "", "x": None, "y": 2.5, "transformers_version": ""}),
    }
    assert canonical_config(plain) == canonical_config(noisy)
    assert canonical_config(plain) == (
        '{"a": "\\u00fc", "b": [1, {"x": null, "y": 2.5}], "dtype": "torch.bfloat16"}'
    )


def test_a_model_whose_layers_are_not_known_is_served_without_a_cache():
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    engine = engine_of(rope_parameters=rope)
    assert engine.groups == ()
    assert "dynamic" in engine.unsupported
    assert len(answer(engine, range(2, 40))) == 8


def test_a_restore_that_does_not_reproduce_its_bits_means_no_cache(monkeypatch):
    found = Fingerprint(b"f" * 32, "logits at 49", 100.0)
    monkeypatch.setattr(room, "fingerprint", lambda *_, **__: found)
    engine = engine_of()
    assert engine.groups == ()
    assert engine.unsupported == "a restore did not reproduce logits at 49"
    assert engine.prefill_tokens_per_s == 100.0
    assert len(answer(engine, range(2, 40))) == 8


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(None, 1, {1}), (5, 1, {1, 5}), ([5, 6], [1, 2], {1, 2, 5, 6}), (None, None, set())],
)
def test_tokens_that_end_an_answer_come_from_both_configurations(generation, config, expected):
    model = build()
    engine = engine_of(model)
    model.generation_config.eos_token_id = generation
    model.config.eos_token_id = config
    assert engine.stop_tokens == expected


def test_a_model_that_states_no_limit_has_a_large_context():
    model = build(
        kind="mamba2",
        max_position_embeddings=None,
        num_heads=4,
        head_dim=32,
        state_size=16,
        n_groups=1,
        chunk_size=8,
    )
    assert engine_of(model).context_tokens == UNBOUNDED_CONTEXT


def test_a_context_shorter_than_two_blocks_is_served_without_a_cache():
    engine = engine_of(max_position_embeddings=24)
    assert "24 tokens" in engine.unsupported
    assert len(answer(engine, range(2, 20), count=4)) == 4


def test_answers_are_those_of_transformers():
    model = build(dtype=torch.float32)
    tokens = list(range(2, 52))
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([tokens]), max_new_tokens=8, min_new_tokens=8, do_sample=False
        )
    # ``min_new_tokens`` hides the end-of-answer token from generate; bias it away here.
    sampling = Sampling(temperature=0.0, logit_bias={1: -1e9})
    chosen = [one.token for one in answer(engine_of(model), tokens, sampling=sampling)]
    assert chosen == expected[0, 50:].tolist()


def test_a_seeded_answer_repeats_itself_and_another_seed_answers_differently():
    engine = engine_of()
    answers = [
        [one.token for one in answer(engine, range(2, 40), sampling=Sampling(seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_transformers_own_loop_is_timed_over_its_tokens():
    ticks = iter([10.0, 12.0])
    assert stock_decode(engine_of(), range(2, 60), 6, lambda: next(ticks)) == 3.0


NAME_IT = """
import sys
from pathlib import Path
from surefoot.engine.hf import load_engine
print(load_engine(
    sys.argv[1], threads=2, block_tokens=16, dtype=None, attention=None, device="cpu",
    cache_folder=Path("unused"), progress=lambda _: None, clock=float,
).model.hex())
"""


def name_in_a_process(folder: Path, **switches: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", NAME_IT, str(folder)],
        env=os.environ | switches,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_another_process_gives_the_same_name_unless_a_math_librarys_switch_is_set(tmp_path):
    folder = save(
        tmp_path / "tiny", dtype=torch.bfloat16, hidden_size=256, intermediate_size=512, head_dim=64
    )
    here = loaded(folder).model.hex()
    assert name_in_a_process(folder) == here
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("the switch changes nothing on a CPU without AVX-512")
    assert name_in_a_process(folder, ONEDNN_MAX_CPU_ISA="AVX2") != here
