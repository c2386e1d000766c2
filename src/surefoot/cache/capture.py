"""Captures: what one answer stood on, or what a fence bars, as JSON that can be shown to others.

In it are receipts, names, digests, lineage, what became of each record, ingredients of models,
settings, counters and versions (``docs/EVIDENCE.md`` has every field). Not in it are text, tokens,
keys, or a path of the machine. Names of blocks are public functions of a prompt, and would confirm
a guess of it; so all that is made of a prompt stands under an alias that the store's secret keys,
unless plain names are asked for. Making a capture changes nothing in the store.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from surefoot.cache.evidence import versions
from surefoot.cache.fences import Fence, Fences
from surefoot.cache.folder import SECRET_BYTES, Folder
from surefoot.cache.journal import JOURNAL, Entry, JournalReader, forget, journal_reader
from surefoot.cache.origins import noted_model
from surefoot.errors import CacheFault, CorruptRecord, SetupError, TierError
from surefoot.identity import (
    TOKEN_DIGEST_BYTES,
    BlockName,
    FeatureName,
    ModelName,
    alias,
    store_id,
)
from surefoot.record import (
    Header,
    UnknownFormat,
    content,
    feature_key,
    read_header,
    unseal,
    unseal_features,
)
from surefoot.record import key as record_key
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

VERSION = 1
VERIFIED = "verified"
PATH = "[path]"  # stands for whatever may have been one
FENCE_TURNS = 8  # the last turns that touched a quarantined name
FENCE_RECORDS = 64  # read whole on the write lane, where other records wait meanwhile
DONORS = 64  # turns that are searched for who committed what was restored
KEPT_BYTES = 64 * 2**20  # of captures made by themselves; the oldest leave first

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAYBE_PATH = re.compile(r"\S*[/\\]\S*")
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_PLAIN_KEYS = ("id", "model")  # of a receipt: neither is made of a prompt


Progress: TypeAlias = Callable[[int, int], None]


def _nothing(done: int, total: int) -> None:
    """Tell nobody."""


class Names(StrEnum):
    """How a capture names what is made of a prompt."""

    KEYED = "keyed"
    PLAIN = "plain"


class Touched(NamedTuple):
    """A record to look at, and every name whose fence would bar it."""

    name: bytes
    group: str  # empty for features
    start: int
    end: int
    stands_on: tuple[bytes, ...]

    @property
    def key(self) -> str:
        """Its key in a tier."""
        if self.group:
            return record_key(BlockName(self.name), self.group)
        return feature_key(FeatureName(self.name))


def capture_turn(
    root: Path,
    receipt_id: str,
    *,
    now: float,
    names: Names = Names.KEYED,
    progress: Progress = _nothing,
) -> dict[str, Any]:
    """Return the capture of one receipt; reads every record that its turn touched.

    Args:
        root: the store's folder.
        receipt_id: the receipt's.
        now: wall clock.
        names: whether aliases stand for what is made of the prompt.
        progress: called with records read and records in all, after each.

    Raises:
        SetupError: no such receipt is in the journal, or the journal or the secret is lost.
        TierError: the store's disk fails.
    """
    look = _Look(root)
    with journal_reader(root / JOURNAL) as journal:
        entry = journal.entry(receipt_id)
        if entry is None:
            count, _ = journal.extent()
            raise SetupError(
                f"no receipt {receipt_id!r:.80} is in the journal, which keeps the last {count}"
            )
        turns = [_turn(entry, journal)]
    touched = list(dict.fromkeys(_touched(entry)))
    subject = {"receipt": receipt_id}
    return look.capture(subject, turns, touched, now=now, names=names, progress=progress)


def capture_fence(
    root: Path,
    number: int,
    *,
    now: float,
    known: Sequence[Fence] | None = None,
    most_bytes: int = KEPT_BYTES,
) -> Path | None:
    """Write the capture of a fence to ``quarantine/``, with the last turns that touched its name.

    Call it on the write lane, once the fence is durable. None if the store does not allow it: what
    quarantines must not fail because it cannot be written about. ``known`` are the store's fences,
    where the caller has them: reading them takes as long as there are many. Of such captures
    ``most_bytes`` are kept, ``KEPT_BYTES`` at most.
    """
    with suppress(SetupError, CacheFault, OSError):
        look = _Look(root, known)
        fence = next((one for one in look.fences if one.number == number), None)
        if fence is None:
            return None
        entries: list[Entry] = []
        turns = []
        with suppress(SetupError), journal_reader(root / JOURNAL) as journal:
            entries = journal.touching(fence.name, FENCE_TURNS) if fence.name else []
            turns = [_turn(entry, journal) for entry in entries]
        touched = dict.fromkeys(one for entry in entries for one in _touched(entry))
        # What bears the name first: a root or features may bar more than there is time to read.
        chosen = sorted(touched, key=lambda one: one.name != fence.name)
        made = look.capture({"fence": number}, turns, chosen[:FENCE_RECORDS], now=now)
        made["left_out"] = len(chosen[FENCE_RECORDS:])
        folder = Folder(root).quarantine
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{number:010d}.capture.json"
        write_capture(path, made)
        _keep_within(folder, min(most_bytes, KEPT_BYTES))
        return path
    return None


def write_capture(path: Path, capture: Mapping[str, Any]) -> None:
    """Write a capture whole, readable by this user alone.

    Raises:
        OSError: it cannot be written.
    """
    staged = path.with_name(f"{path.name}.staged")
    staged.unlink(missing_ok=True)
    staged.touch(mode=0o600)
    staged.write_text(json.dumps(capture, indent=1) + "\n")
    staged.replace(path)


def purge_evidence(root: Path, keep: Collection[bytes]) -> int:
    """Remove what the journal says of all roots but these, and every capture in the store.

    Returns how many entries of the journal went. A capture's names are aliases, so whose it is
    cannot be told.

    Raises:
        TierError: the store's disk fails, or another process keeps the journal busy.
    """
    gone = forget(root / JOURNAL, keep)
    try:
        for path in Folder(root).quarantine.glob("*.capture.json*"):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise TierError(f"captures cannot be removed: {error}") from error
    return gone


def _keep_within(folder: Path, most_bytes: int) -> None:
    kept = sorted(folder.glob("*.capture.json"))
    sizes = {path: path.stat().st_size for path in kept}
    for path in kept[:-1]:
        if sum(sizes.values()) <= most_bytes:
            return
        path.unlink(missing_ok=True)
        del sizes[path]


# What the journal says.


def _turn(entry: Entry, journal: JournalReader) -> dict[str, Any]:
    shown = {"at": entry.at, "receipt": dict(entry.receipt), **entry.evidence}
    shown["restored"] = _with_donors(entry, journal)
    shown["counters"] = dict(entry.counters)
    shown["process"] = _public(entry.process)
    shown["tokens"] = {
        "digest_bytes": TOKEN_DIGEST_BYTES,
        "digests": entry.token_digests.hex(),
    }
    return shown


def _with_donors(entry: Entry, journal: JournalReader) -> list[dict[str, Any]]:
    """Say of each restored part which turn committed it, and what that turn says it was."""
    blocks, restored = entry.evidence["blocks"], entry.evidence["restored"]
    donors: dict[tuple[str, str], dict[str, str]] = {}
    if restored:
        first = bytes.fromhex(blocks[0]["name"])
        for other in reversed(journal.touching(first, DONORS)):
            if other.at > entry.at or other.receipt["id"] == entry.receipt["id"]:
                continue
            for one in other.evidence["committed"]:
                name = other.evidence["blocks"][one["block"]]["name"]
                source = {"id": other.receipt["id"], "content": one["content"]}
                donors[name, one["group"]] = source
    return [
        one | {"committed_by": donors.get((blocks[one["block"]]["name"], one["group"]))}
        for one in restored
    ]


def _touched(entry: Entry) -> Iterator[Touched]:
    evidence = entry.evidence
    blocks, media = evidence["blocks"], evidence["media"]
    parts = {
        (one["block"], one["group"])
        for kind in ("restored", "failed", "committed")
        for one in evidence[kind]
    }
    chain = [bytes.fromhex(evidence["root"])] if evidence["root"] else []
    above = [bytes.fromhex(block["name"]) for block in blocks]
    for index, group in sorted(parts):
        block = blocks[index]
        consumed = [
            bytes.fromhex(item["feature"])
            for item in media
            if item["feature"] and item["start"] < block["end"]
        ]
        stands_on = (*chain, *above[: index + 1], *consumed)
        yield Touched(above[index], group, block["start"], block["end"], stands_on)
    for item in media:
        if item["feature"]:
            name = bytes.fromhex(item["feature"])
            # A purged root takes the features that only its blocks consumed, but bars them not.
            yield Touched(name, "", item["start"], item["start"] + item["tokens"], (name,))


# What the store says now.


class _Look:
    """One look at a store that changes nothing in it."""

    def __init__(self, root: Path, known: Sequence[Fence] | None = None) -> None:
        folder = Folder(root)
        self._root = root
        self._inventory = folder.inventory
        self._records = SsdTier(folder.records, RealDisk(), "reader")
        self._aside = SsdTier(folder.quarantine, RealDisk(), "reader")
        self._secret = _secret(root)
        self._kept: dict[str, str] | None = None  # records aside, by their key in the tier
        if known is None:
            tier = SsdTier(folder.fences, RealDisk(), "reader")
            fences = Fences(tier, alone=nullcontext, wall_clock=float)
            fences.load()
            known = fences.known()
        self.fences = known

    def capture(
        self,
        subject: Mapping[str, Any],
        turns: list[dict[str, Any]],
        touched: list[Touched],
        *,
        now: float,
        names: Names = Names.KEYED,
        progress: Progress = _nothing,
    ) -> dict[str, Any]:
        """Put together what the journal said and what the store says now."""
        tokens = [turn.pop("tokens") for turn in turns]
        secret = self._secret if names is Names.KEYED else None
        seen = dict.fromkeys(name for turn in turns for name in _names(turn))
        models = dict.fromkeys(turn["receipt"]["model"] for turn in turns)
        records = []
        for done, one in enumerate(touched, 1):
            records.append(self._record(one))
            progress(done, len(touched))
        found = {
            "turns": turns,
            "records": records,
            "fences": [
                _fence(one)
                for one in self.fences
                if one.name is None or one.name in seen or one.number == subject.get("fence")
            ],
            "verdicts": self._verdicts(seen),
        }
        veiled = {key: _veiled(value, secret) for key, value in found.items()}
        for turn, digests in zip(veiled["turns"], tokens, strict=True):
            turn["tokens"] = digests
        return {
            "surefoot_capture": VERSION,
            "of": dict(subject),
            "made_at": now,
            "made_with": versions(),
            "store": store_id(self._secret).hex(),
            "names": names.value,
            **veiled,
            "models": {model: self._model(model) for model in models},
            "left_out": 0,
        }

    def _record(self, one: Touched) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "name": one.name.hex(),
            "group": one.group or None,
            "start": one.start,
            "end": one.end,
            "found": "absent",
            "bytes": None,
            "seal": None,
            "header": None,
            "covered_by": [
                fence.number
                for fence in self.fences
                if fence.name is None or fence.name in one.stands_on
            ],
        }
        try:
            data = self._records.get(one.key)
            if data is not None:
                shown["found"] = "stored"
            else:
                data = self._from_quarantine(one.key)
                shown["found"] = "absent" if data is None else "aside"
        except CacheFault:
            shown["found"] = "unreadable"
            return shown
        if data is not None:
            shown["bytes"] = len(data)
            shown["seal"], shown["header"] = _examined(data, one)
        return shown

    def _from_quarantine(self, key: str) -> bytes | None:
        if self._kept is None:
            self._kept = {held.partition(".")[2]: held for held in sorted(dict(self._aside.list()))}
        return self._aside.get(self._kept[key]) if key in self._kept else None

    def _verdicts(self, names: Iterable[bytes]) -> list[dict[str, Any]]:
        # Past ``Inventory``, which would repair what it finds: a look must leave it as it is.
        found = []
        uri = f"{self._inventory.absolute().as_uri()}?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as connection:
            for name in names:
                query = "SELECT verdict, at FROM audits WHERE name = ?"
                for verdict, at in connection.execute(query, (name,)).fetchall():
                    found.append({"name": name.hex(), "verdict": str(verdict), "at": float(at)})
        return found

    def _model(self, model: str) -> dict[str, Any] | None:
        origin = noted_model(self._root, ModelName(bytes.fromhex(model)))
        if origin is None:
            return None
        return {
            "ingredients": _public(dict(origin.ingredients)),
            "loaded_as": _public(dict(origin.loaded_as)),
        }


def _secret(root: Path) -> bytes:
    try:
        secret = (root / "secret").read_bytes()
    except OSError as error:
        raise SetupError(f"the store's secret cannot be read: {error.strerror}") from error
    if len(secret) != SECRET_BYTES:
        raise SetupError("the store's secret is damaged; the next start of a server makes another")
    return secret


def _examined(data: bytes, one: Touched) -> tuple[str, dict[str, Any] | None]:
    """Say whether a record is what it should be, in fixed words: its own could hold anything."""
    try:
        header = read_header(data)
    except UnknownFormat:
        return "of a version, kind or codec that this release does not read", None
    except CorruptRecord:
        return "its header is damaged", None
    shown = {"content": header.content.hex(), "fence": header.fence}
    if isinstance(header, Header):
        shown |= {
            "name": header.block.name.hex(),
            "parent": header.block.parent.hex(),
            "features": [feature.hex() for feature in header.features],
        }
        answers = (header.block.name, header.group) == (one.name, one.group)
    else:
        shown |= {"name": header.name.hex(), "parent": None, "features": []}
        answers = (header.name, "") == (one.name, one.group)
    return (_sealed(data, one, header.content) if answers else "it is of another name"), shown


def _sealed(data: bytes, one: Touched, stated: bytes) -> str:
    try:
        if one.group:
            held = content(unseal(data, name=BlockName(one.name), group=one.group)[1])
        else:
            held = content(unseal_features(data, name=FeatureName(one.name))[1])
    except CorruptRecord:
        return "its bytes are not what was sealed"
    return VERIFIED if held == stated else "it does not hold the content that its header states"


def _fence(fence: Fence) -> dict[str, Any]:
    # Without its detail, which is free text.
    return {
        "number": fence.number,
        "name": fence.name.hex() if fence.name is not None else None,
        "reason": fence.reason.value,
        "at": fence.at,
    }


# What may be shown.


def _veiled(value: Any, secret: bytes | None) -> Any:
    """Put an alias in the place of every digest that is made of a prompt."""
    if isinstance(value, dict):
        return {
            key: one if key in _PLAIN_KEYS else _veiled(one, secret) for key, one in value.items()
        }
    if isinstance(value, list):
        return [_veiled(one, secret) for one in value]
    if secret is not None and isinstance(value, str) and _DIGEST.fullmatch(value):
        return alias(secret, bytes.fromhex(value)).hex()
    return value


def _names(turn: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield what a fence or a verdict on this turn's state would be named for."""
    features = (item["feature"] for item in turn["media"])
    for name in (turn["root"], *(block["name"] for block in turn["blocks"]), *features):
        if name is not None:
            yield bytes.fromhex(name)


def _public(value: Any) -> Any:
    """Leave out every word that may be a path; a hub id is none."""
    if isinstance(value, dict):
        return {key: _public(one) for key, one in value.items()}
    if isinstance(value, str):
        return _MAYBE_PATH.sub(
            lambda found: found[0] if _HUB_ID.fullmatch(found[0]) else PATH, value
        )
    return value
