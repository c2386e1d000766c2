"""A GGUF file is expanded once; whatever happens to the folder, the model is the file's."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from saved_models import SHAPE, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from surefoot.engine.hf import gguf as room
from surefoot.engine.hf.gguf import expanded, file_digest, intact
from surefoot.errors import SetupError


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf")


@pytest.fixture(scope="module")
def pristine(file, tmp_path_factory):
    return expanded(file, tmp_path_factory.mktemp("pristine"), lambda _: None)


@pytest.fixture
def cache(pristine, tmp_path):
    """A cache folder that already holds the expanded model."""
    shutil.copytree(pristine, tmp_path / "gguf" / pristine.name)
    return tmp_path


def folder_in(cache):
    (folder,) = (cache / "gguf").iterdir()
    return folder


def unused(_):
    raise AssertionError("nothing was to be expanded")


def contents(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_the_folder_is_a_plain_bfloat16_model_with_a_tokenizer(file, pristine):
    model = AutoModelForCausalLM.from_pretrained(pristine)
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == SHAPE["vocab_size"]
    assert "quantization_config" not in json.loads((pristine / "config.json").read_text())
    direct = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    for (name, one), (_, other) in zip(
        model.state_dict().items(), direct.state_dict().items(), strict=True
    ):
        assert one.equal(other), name
    tokenizer = AutoTokenizer.from_pretrained(pristine)
    assert tokenizer.decode(tokenizer("tab b").input_ids) == "tab b"


def test_a_second_start_expands_nothing_and_changes_nothing(file, cache, monkeypatch):
    before = contents(folder_in(cache))
    monkeypatch.setattr(room, "_write", unused)
    assert expanded(file, cache, unused) == folder_in(cache)
    assert contents(folder_in(cache)) == before


def test_another_file_under_the_same_path_is_another_model(file, cache, tmp_path):
    moved = shutil.copy(file, tmp_path / "model.gguf")
    first = expanded(tmp_path / "model.gguf", cache, unused)
    write_gguf(tmp_path / "model.gguf", seed=1)
    assert os.stat(moved).st_size == file.stat().st_size
    assert expanded(tmp_path / "model.gguf", cache, lambda _: None) != first


def test_damage_to_any_file_is_found_and_the_folder_is_expanded_anew(file, cache):
    folder = folder_in(cache)
    before = contents(folder)
    assert len(before) >= 5
    for name in before:
        for damage in (_flip_last_bit, _truncate, _delete, _add_another):
            damage(folder / name)
            assert not intact(folder), (name, damage)
        if name in ("model.safetensors", "manifest.json"):
            assert expanded(file, cache, lambda _: None) == folder
            assert contents(folder) == before
        else:
            shutil.rmtree(folder)
            folder.mkdir()
            for one, data in before.items():
                (folder / one).write_bytes(data)


def _flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def _delete(path):
    path.unlink()


def _add_another(path):
    path.with_name("pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize("manifest", [b"", b"[]", b"{}", b"null", b"\xff", b'{"model": 1}'])
def test_a_manifest_that_says_nothing_vouches_for_nothing(cache, manifest):
    folder = folder_in(cache)
    (folder / "manifest.json").write_bytes(manifest)
    assert not intact(folder)


def test_a_crash_while_expanding_leaves_nothing_that_is_used(file, tmp_path, monkeypatch):
    def crash(_, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(room, "_write", crash)
        with pytest.raises(KeyboardInterrupt):
            expanded(file, tmp_path, lambda _: None)
    assert list((tmp_path / "gguf").iterdir()) == []
    assert intact(expanded(file, tmp_path, lambda _: None))


def test_what_a_dead_process_left_is_removed_and_a_living_one_is_left_alone(file, tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    ).stdout.strip()
    name = f"{file_digest(file).hex()}-{room.VERSION}"
    left = [
        tmp_path / "gguf" / f"{name}.{owner}.partial"
        for owner in (int(dead), os.getpid(), os.getppid())
    ]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    folder = expanded(file, tmp_path, lambda _: None)
    assert set((tmp_path / "gguf").iterdir()) == {folder, left[2]}


def test_a_process_that_was_faster_is_believed(file, cache, monkeypatch):
    folder = folder_in(cache)
    answers = iter([False, True, True])
    monkeypatch.setattr(room, "intact", lambda _: next(answers))
    monkeypatch.setattr(room, "_write", lambda *_: None)
    before = contents(folder)
    assert expanded(file, cache, lambda _: None) == folder
    assert contents(folder) == before


def test_a_folder_that_is_not_what_was_written_is_refused(file, cache, monkeypatch):
    monkeypatch.setattr(room, "intact", lambda _: False)
    with pytest.raises(SetupError, match="check the disk"):
        expanded(file, cache, lambda _: None)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    file, tmp_path, monkeypatch, package
):
    monkeypatch.setattr(room, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(SetupError, match=rf"needs {package};.*pip install 'surefoot\[gguf\]'"):
        expanded(file, tmp_path, lambda _: None)


def test_an_expanded_model_needs_no_packages(file, cache, monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda _: None)
    assert expanded(file, cache, unused) == folder_in(cache)


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model", None])
def test_what_is_no_gguf_file_is_refused(tmp_path, content):
    path = tmp_path / "some.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SetupError, match=r"some\.gguf is not a GGUF file"):
        expanded(path, tmp_path / "cache", unused)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kept", [4, 24, 5_000, 30_000])
def test_a_file_that_ends_too_soon_is_refused(file, tmp_path, kept):
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(SetupError, match=r"short\.gguf could not be read as a GGUF model"):
        expanded(short, tmp_path / "cache", lambda _: None)
    assert list((tmp_path / "cache" / "gguf").iterdir()) == []


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path):
    path = write_gguf(tmp_path / "some.gguf", leave_out=("blk.1.ffn_up.weight",))
    with pytest.raises(SetupError, match=r"lacks tensors of its model: .*layers\.1\.mlp\.up_proj"):
        expanded(path, tmp_path / "cache", lambda _: None)


def test_a_cache_folder_that_cannot_be_written_is_refused(file, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(SetupError, match=r"could not be expanded into .*cache: Not a directory"):
        expanded(file, tmp_path / "cache", lambda _: None)


def test_a_configuration_that_calls_plain_tensors_packed_is_corrected(pristine):
    model = AutoModelForCausalLM.from_pretrained(pristine)
    model.config.quantization_config = GgufConfig(dequantize=True)
    room._forget_packing(model)
    assert not hasattr(model.config, "quantization_config")
    assert isinstance(model.config, type(AutoConfig.from_pretrained(pristine)))
