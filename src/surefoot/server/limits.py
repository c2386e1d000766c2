"""The most that one client may send, and all of them together."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes are bytes; what follows from the others is a property.

    A body is held while it is read and until its answer ends, so ``held_bytes`` bounds what all of
    them take of this server's memory, however many there are.
    """

    body_bytes: int = 16 * MIB  # images left out; about 4 million tokens: more than any context
    messages: int = 4096
    images: int = 32
    image_bytes: int = 20 * MIB  # of one file
    requests: int = 256  # at work or waiting at once; each may hold a body
    held_bytes: int = 256 * MIB

    @property
    def files_bytes(self) -> int:
        """The most bytes of all image files of one request; one at its limit always fits."""
        return max(48 * MIB, self.image_bytes)

    @property
    def chat_body_bytes(self) -> int:
        """The most bytes of a chat's body: its text, and its images in base64."""
        return self.body_bytes + -(-self.files_bytes // 3) * 4

    @property
    def room_bytes(self) -> int:
        """The most bytes held for all requests together; one body at its limit always fits."""
        return max(self.held_bytes, self.chat_body_bytes)
