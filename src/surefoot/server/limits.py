"""The most that one client may send and hold, all of them together, and how long it may take."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes are bytes, times seconds; what follows from the others is a property.

    A body is held while it is read and until its answer ends, so ``held_bytes`` bounds what all of
    them take of this server's memory, however many there are.
    """

    body_bytes: int = 16 * MIB  # images left out; about 4 million tokens: more than any context
    messages: int = 4096
    images: int = 32
    image_bytes: int = 20 * MIB  # of one file
    requests: int = 256  # at work or waiting at once; each may hold a body
    client_requests: int = 32  # of those, of one key or one address: two leave the queue places
    held_bytes: int = 256 * MIB
    stall_s: float = 20.0  # for a head, for more of a body, for a client to read on

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

    @property
    def client_bytes(self) -> int:
        """The most bytes held for one client; one body at its limit always fits."""
        return max(self.held_bytes // 2, self.chat_body_bytes)

    @property
    def body_s(self) -> float:
        """The most a body may take in all: the largest arrives whole at 6 Mbit/s."""
        return 6 * self.stall_s

    @property
    def connections(self) -> int:
        """Connections open at once; each request has one, and as many may be idle or beginning."""
        return 2 * self.requests
