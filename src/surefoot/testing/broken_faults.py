"""What the deliberately broken server can be: one fault at a time, and what it offers to clients.

A fault stands for reports from the field, whose cases are known by number:

| case | what it tries |
|---|---|
| 1 | pictures that change under one text |
| 3 | digests that two pictures share |
| 4 | conversations that share a preamble, in turns and at once |
| 5, 6 | replays at exact lengths; a fact in the first tokens of a long prompt |
| 7 | tenants, in every tier |
| 8 | other weights under one name |
| 10, 11 | loads that fail or never answer; restarts |
| 12 | features that change the prompt, tools among them |
| 13 | counters |

A server has no fault or one. A behaviour is no fault: honest servers differ in all of it.
"""

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """One fault of state handling; ``says`` is what it does, ``cases`` what it stands for."""

    says: str
    cases: tuple[int, ...]

    def __new__(cls, name: str, says: str, *cases: int) -> "Fault":
        """Return a fault called ``name``."""
        fault = str.__new__(cls, name)
        fault._value_, fault.says, fault.cases = name, says, cases
        return fault

    KEY_IGNORES_MEDIA = (
        "key_ignores_media",
        "block keys leave out what an image shows: the second picture gets the first's rows",
        1,
    )
    DIGEST_IGNORES_DIMENSIONS = (
        "digest_ignores_dimensions",
        "a picture's digest is over its RGB bytes alone: 6x4 and 4x6 share features and keys",
        3,
    )
    DONOR_LENGTH = (
        "donor_length",
        "a restore takes the donor's pooled index with the donor's length",
        4,
    )
    WRONG_BOUNDARY = (
        "wrong_boundary",
        "a restore takes the recurrent state of the boundary before the one it stands at",
        5,
        6,
    )
    SALT_IGNORED_ON_DISK = (
        "salt_ignored_on_disk",
        "RAM's keys hold the salt, the disk's do not: tenants share what is on disk",
        7,
    )
    SALT_IGNORED = (
        "salt_ignored",
        "a salt is understood, and no key holds it",
        7,
    )
    LAST_TOKEN_TWICE = (
        "last_token_twice",
        "a full hit folds the prompt's last token into the recurrent state a second time",
        5,
    )
    SHARED_ENTRY = (
        "shared_entry",
        "two requests in flight that share a preamble append to one mutable entry",
        4,
    )
    STALE_AFTER_RESTART = (
        "stale_after_restart",
        "a restart numbers the records anew; keys still hold the old numbers",
        8,
        11,
    )
    OTHER_WEIGHTS = (
        "other_weights",
        "a restart loads other weights, and records of the old ones are believed",
        8,
    )
    COUNTER_TOO_HIGH = (
        "counter_too_high",
        "`cached_tokens` tells of a hit where everything was computed",
        6,
        13,
    )
    COUNTER_ZERO = (
        "counter_zero",
        "`cached_tokens` is 0 whatever was reused",
        13,
    )
    POISONED = (
        "poisoned",
        "a stream that is left commits a half-filled state under the whole prompt's keys",
        10,
    )
    EVICTED_MIXUP = (
        "evicted_mixup",
        "an evicted block's slot is filled by another session, and its key still names it",
        10,
    )
    TOOLS_IGNORED_IN_KEY = (
        "tools_ignored_in_key",
        "tools are rendered before the system text, and no key holds them",
        12,
    )
    THINKING_IGNORED_IN_KEY = (
        "thinking_ignored_in_key",
        "a whole prompt's state is reused by a key that leaves `enable_thinking` out",
        12,
    )
    REMOVED_IMAGE_KEPT = (
        "removed_image_kept",
        "a history without its image is matched as if the image were still there",
        1,
    )
    HANGS_ON_HIT = (
        "hangs_on_hit",
        "a request whose prompt is mostly restored is never answered",
        10,
    )
    EMPTY_ON_HIT = (
        "empty_on_hit",
        "a request whose prompt is mostly restored is answered with nothing, status 200",
        10,
    )
    WINDOW_LOST = (
        "window_lost",
        "a restored prompt of more than 2,000 tokens has lost the rows of its first 64",
        6,
    )
    ANSWER_SHIFTED = (
        "answer_shifted",
        "an answer's blocks are kept too, every token but the first one place late",
        4,
    )
    DONOR_LENGTH_BEYOND_1024 = (
        "donor_length_beyond_1024",
        "a restore into a prompt of more than 1,024 tokens takes the donor's index and its length",
        4,
        6,
    )
    KEY_FIRST_PICTURE_ONLY = (
        "key_first_picture_only",
        "block keys hold the first picture of a prompt, and of later ones that they are there",
        1,
    )
    TOOLS_KEYED_BY_NAMES = (
        "tools_keyed_by_names",
        "tools are rendered before the system text, and keys hold their names alone",
        12,
    )
    SALT_FIRST_16_CHARACTERS = (
        "salt_first_16_characters",
        "keys hold the first 16 characters of a salt",
        7,
    )
    SALT_CASE_FOLDED = (
        "salt_case_folded",
        "keys hold a salt in lower case",
        7,
    )
    REWOUND = (
        "rewound",
        "a prompt that is the beginning of a longer chat takes the index of all of that chat",
        4,
    )
    PICTURE_NUMBER_AFTER_RESTART = (
        "picture_number_after_restart",
        "keys hold a picture's number, which a restart counts anew; the disk keeps the keys",
        1,
        11,
    )
    EVICTED_WHILE_SHARED = (
        "evicted_while_shared",
        "an evicted block of two conversations has its slot filled, and its key still names it",
        10,
    )
    STRANGERS_IN_FLIGHT = (
        "strangers_in_flight",
        "two requests in flight that share nothing append to one mutable entry",
        4,
    )
    SHARED_ENTRY_FROM_8 = (
        "shared_entry_from_8",
        "of eight requests in flight, those with one preamble append to one mutable entry",
        4,
    )
    LONG_ANSWER_OVERWRITES = (
        "long_answer_overwrites",
        "an answer of 16 tokens or more is written over its prompt's last whole block",
        5,
    )
    POISONED_IN_DECODE = (
        "poisoned_in_decode",
        "a stream that is left after two tokens leaves its prompt's last whole block blank",
        10,
    )


@dataclass(frozen=True, slots=True)
class Skills:
    """What the model can do; without a skill it says that it does not know.

    Attributes:
        secret: finds the code of ``The secret code is ...``.
        mine: finds the code of ``My code is ...``.
        recall_tokens: how far back it finds a code, None for any distance.
        colour: names the colour of an image.
        ordinal: tells the first image of a message from the second.
        shape: tells wide from tall.
    """

    secret: bool = True
    mine: bool = True
    recall_tokens: int | None = None
    colour: bool = True
    ordinal: bool = True
    shape: bool = True


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How an honest server may differ from another.

    Attributes:
        offers_logprobs: gives logprobs where they are asked for.
        offers_counters: tells ``cached_tokens``; without, ``prompt_tokens_details`` is null.
        knows_salts: honours and checks ``cache_salt``; without, it is ignored.
        sees_images: takes images; without, they are refused.
        knows_tools: takes tools; without, they are refused.
        knows_thinking: honours ``chat_template_kwargs.enable_thinking``.
        keys_apart: requests of different API keys share nothing.
        caches: reuses state.
        jitter: logits move by at most so many nat, as a function of where the prompt was cut.
        unsteady: every request takes longer or shorter by at most this share, drawn by its number.
        repeats: equal requests get equal answers.
        skills: what the model can do.
        block_tokens: the cache's unit, a multiple of 8.
        ram_tokens: how many tokens' rows RAM holds.
        digits_together: how many digits one token holds, 1 to 3.
        context: the longest prompt, in tokens.
        api_keys: what is let in; empty for everyone.
    """

    offers_logprobs: bool = True
    offers_counters: bool = True
    knows_salts: bool = True
    sees_images: bool = True
    knows_tools: bool = True
    knows_thinking: bool = True
    keys_apart: bool = False
    caches: bool = True
    jitter: float = 0.0
    unsteady: float = 0.0
    repeats: bool = True
    skills: Skills = Skills()
    block_tokens: int = 16
    ram_tokens: int = 4000
    digits_together: int = 3
    context: int = 8192
    api_keys: tuple[str, ...] = ()
