"""What a capture may show of a server's settings: nothing that names a person, place or secret."""

from dataclasses import MISSING, fields
from pathlib import Path

from surefoot.cli.evidence_commands import shared_settings
from surefoot.cli.serve import ServeOptions

CANARY = "canary"


def options():
    """Return every option of a server, each text, path and list a canary."""
    made = {}
    for one in fields(ServeOptions):
        text = str(one.type)
        if "Path" in text:
            made[one.name] = Path("/home") / CANARY
        elif "tuple" in text:
            made[one.name] = (f"sk-{CANARY}", "b")
        elif "str" in text and one.name not in ("dtype", "device"):
            made[one.name] = CANARY
        else:
            made[one.name] = 7
    assert all(one.default is MISSING for one in fields(ServeOptions))
    return made


def test_no_text_of_a_setting_is_shared():
    shown = shared_settings(options() | {"dtype": "float32", "device": "cpu"})
    assert CANARY not in repr(shown)
    assert shown["api_keys"] == 2
    assert shown["store"] == "on"
    assert (shown["dtype"], shown["device"], shown["ram_bytes"]) == ("float32", "cpu", 7)


def test_a_server_without_a_store_says_so():
    assert shared_settings({"store": None, "fetches": True}) == {"store": "off", "fetches": True}
