"""What else decides bits: each fact is there, and each setting that changes bits changes it."""

import importlib.metadata

import pytest
import torch
from saved_models import build

from surefoot.engine.hf import numerics as room
from surefoot.engine.hf.numerics import KERNEL_PACKAGES, numerics

MODEL = build()
FACTS = numerics(MODEL, threads=2, block_tokens=256)


def changed(model=MODEL, threads=2, block_tokens=256):
    """Return the names of the facts that differ from those of the plain settings."""
    facts = numerics(model, threads=threads, block_tokens=block_tokens)
    assert facts.keys() == FACTS.keys()
    return {name for name in facts if facts[name] != FACTS[name]}


def test_the_same_settings_give_the_same_facts():
    assert changed() == set()
    assert all(isinstance(value, str) for value in FACTS.values())


def test_the_rules_of_our_own_are_stated():
    assert FACTS["version"] == "1"
    assert FACTS["batch"] == "1"
    assert FACTS["logits_to_keep"] == "1"
    assert FACTS["grid"].startswith("1: ")
    assert FACTS["device"] == "cpu"
    assert "CPU capability" in FACTS["torch build"]
    assert FACTS["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"threads": 1}, {"threads"}),
        ({"block_tokens": 128}, {"block_tokens"}),
        ({"model": build(dtype=torch.bfloat16)}, {"dtype"}),
        (
            {"model": build(attn_implementation="eager")},
            {"attention", "decode_attention"},
        ),
        ({"model": build(kind="qwen2_moe", num_experts=2)}, {"decode_attention"}),
    ],
)
def test_a_setting_changes_its_own_fact_and_no_other(arguments, facts):
    assert changed(**arguments) == facts


def test_switches_of_torch_count():
    torch.use_deterministic_algorithms(mode=True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.enabled = False
    try:
        assert changed() == {"deterministic", "matmul precision", "mkldnn"}
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.enabled = True
    assert torch.set_flush_denormal(True)
    try:
        assert changed() == {"flush denormal"}
    finally:
        torch.set_flush_denormal(False)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert changed() == {"sdpa kernels"}
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.parametrize("package", KERNEL_PACKAGES)
def test_an_optional_kernel_package_counts_with_its_version(monkeypatch, package):
    stock = importlib.metadata.version
    monkeypatch.setattr(room, "version", lambda name: "9.9" if name == package else stock(name))
    assert numerics(MODEL, threads=2, block_tokens=256)[f"package {package}"] == "9.9"


def test_a_package_that_is_not_installed_is_absent(monkeypatch):
    monkeypatch.setattr(room, "KERNEL_PACKAGES", ("surefoot-no-such-package",))
    facts = numerics(MODEL, threads=2, block_tokens=256)
    assert facts["package surefoot-no-such-package"] == "absent"
