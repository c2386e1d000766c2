"""How much may be sent: one of everything at its limit always fits."""

import pytest

from surefoot.server import Limits

MIB = 2**20


def test_the_defaults_let_a_whole_context_and_its_images_through():
    limits = Limits()
    assert limits.body_bytes == 16 * MIB
    assert limits.messages == 4096
    assert (limits.images, limits.image_bytes) == (32, 20 * MIB)
    assert (limits.files_bytes, limits.chat_body_bytes) == (48 * MIB, 80 * MIB)
    assert limits.room_bytes == 256 * MIB


@pytest.mark.parametrize("image_bytes", [1, 48 * MIB, 48 * MIB + 1, 2**30])
def test_an_image_at_its_limit_fits_into_what_holds_it(image_bytes):
    limits = Limits(image_bytes=image_bytes)
    assert image_bytes <= limits.files_bytes
    assert -(-image_bytes // 3) * 4 + limits.body_bytes <= limits.chat_body_bytes
    assert limits.chat_body_bytes <= limits.room_bytes
