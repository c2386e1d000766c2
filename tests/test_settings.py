"""Sizes are read as people write them; everything else is one sentence that names the flag."""

from pathlib import Path

import pytest

from surefoot import settings
from surefoot.errors import SetupError
from surefoot.settings import Setting, at_least, one_of, parse_bytes, parse_store, share


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1234", 1234),
        ("40MB", 40 * 10**6),
        ("40 mb", 40 * 10**6),
        ("2GiB", 2 * 2**30),
        ("1.5KiB", 1536),
        ("7B", 7),
        ("3TB", 3 * 10**12),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text, nbytes):
    assert parse_bytes(text, flag="--ram-bytes") == nbytes


@pytest.mark.parametrize("text", ["", "many", "-1", "1e9", "12 parsecs", "1 2", "nan", "MB"])
def test_what_is_no_size_is_refused_by_flag_and_value(text):
    with pytest.raises(SetupError, match="--ram-bytes") as refused:
        parse_bytes(text, flag="--ram-bytes")
    assert repr(text) in str(refused.value)


def test_a_size_below_its_least_is_refused():
    assert parse_bytes("1KB", flag="--image-bytes", least=1000) == 1000
    with pytest.raises(SetupError, match="--image-bytes 999 is too small") as refused:
        parse_bytes("999", flag="--image-bytes", least=1000)
    assert str(refused.value).endswith("at least 1000")


def test_a_word_is_one_of_those_that_are_known():
    assert one_of(("off", "public"), "public", flag="--image-urls") == "public"
    for text in ("on", "", "Public", "off,public"):
        with pytest.raises(SetupError, match="must be one of off, public") as refused:
            one_of(("off", "public"), text, flag="--image-urls")
        assert str(refused.value).startswith(f"--image-urls {text!r}")


def test_a_store_is_off_the_default_or_a_folder():
    default = Path("/default")
    assert parse_store("off", default=default) is None
    assert parse_store("", default=default) == default
    assert parse_store("~/x", default=default) == Path.home() / "x"


def test_a_number_below_its_least_is_refused():
    assert at_least(1, 1, flag="--threads") == 1
    with pytest.raises(SetupError, match="--threads 0 is too small: it must be at least 1"):
        at_least(1, 0, flag="--threads")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_does_not_end_is_refused(value):
    with pytest.raises(SetupError, match=r"--stall-s .* is endless"):
        settings.at_least(1, value, flag="--stall-s")


def test_every_setting_has_a_reason_and_a_default_of_its_kind():
    every = {name: one for name, one in vars(settings).items() if isinstance(one, Setting)}
    assert len(every) > 10
    for name, one in every.items():
        assert len(one.reason.split()) >= 4, name
        if name.endswith("_BYTES") or name == "FREE_FLOOR":
            assert parse_bytes(str(one.default), flag=name) > 0


def test_a_share_is_from_nothing_to_all():
    assert [share(one, flag="--audit-share") for one in (0.0, 0.01, 1.0)] == [0.0, 0.01, 1.0]
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(SetupError, match=r"--audit-share .* must be from 0 to 1"):
            share(wrong, flag="--audit-share")
