"""What the broken server's keys are made of, and what a fault leaves out of them.

A key is of a tenant, a root and a chain of blocks. Unbroken, the root is empty and the chain holds
every token whole, so that equal keys mean equal prompts of one tenant.
"""

import json
from collections.abc import Hashable, MutableMapping

from surefoot.testing.broken_faults import Fault
from surefoot.testing.broken_prompt import Picture, Prompt, Token

SALT_KEPT = 16  # characters
_OUTSIDE = (Fault.TOOLS_IGNORED_IN_KEY, Fault.TOOLS_KEYED_BY_NAMES)


def salt_told(salt: str | None, fault: Fault | None, *, on_disk: bool) -> str | None:
    """Return what the keys of a tier hold of a salt."""
    if fault is Fault.SALT_IGNORED or (fault is Fault.SALT_IGNORED_ON_DISK and on_disk):
        return None
    if salt is not None and fault is Fault.SALT_FIRST_16_CHARACTERS:
        return salt[:SALT_KEPT]
    if salt is not None and fault is Fault.SALT_CASE_FOLDED:
        return salt.casefold()
    return salt


def root_told(prompt: Prompt, fault: Fault | None) -> tuple[int, Hashable]:
    """Return how many leading tokens are in no block's key, and what stands for them in all."""
    if fault not in _OUTSIDE or not prompt.preface:
        return 0, ()
    names: tuple[str, ...] = ()
    if fault is Fault.TOOLS_KEYED_BY_NAMES:
        listed = json.loads("".join(prompt.bare[1 : prompt.preface - 1]))
        names = tuple(tool["function"]["name"] for tool in listed)
    return prompt.preface, names


def contents_told(
    prompt: Prompt, fault: Fault | None, numbers: MutableMapping[Picture, int]
) -> list[Hashable]:
    """Return what keys hold of each token; ``numbers`` are of the pictures this process has met."""
    pictures = (token.picture for token in prompt.tokens if not isinstance(token, str))
    first = next(pictures, None)

    def told(token: Token) -> Hashable:
        if isinstance(token, str):
            return token
        bare, picture = ("patch", token.place), token.picture
        unseen = fault is Fault.KEY_FIRST_PICTURE_ONLY and picture != first
        if unseen or fault is Fault.KEY_IGNORES_MEDIA:
            return bare
        if fault is Fault.PICTURE_NUMBER_AFTER_RESTART:
            return (*bare, numbers.setdefault(picture, len(numbers)))
        if fault is Fault.DIGEST_IGNORES_DIMENSIONS:
            return (*bare, picture.rgb)
        return (*bare, picture)

    return [told(token) for token in prompt.tokens]
