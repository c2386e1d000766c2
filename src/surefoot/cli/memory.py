"""How a server's process keeps the memory that it frees: resident bytes stay flat (``make soak``).

By default glibc gives threads heaps of their own, eight for each core. The engine thread, the I/O
threads and the web server's free what another one allocated, so each heap keeps pages that are in
use nowhere. The interpreter's lock lets hardly more than two threads allocate at once anyway.

Python looks at all objects for cycles that nobody holds when they have grown by a quarter. With the
half million that loading a model leaves behind, requests' cycles would lie about for an hour.
"""

import ctypes
import gc

HEAPS = 2
_M_ARENA_MAX = -8  # malloc.h, glibc


def bound_heaps() -> bool:
    """Let malloc keep ``HEAPS`` heaps at most; call it before threads are started.

    Returns:
        False where the C library has no such setting, and nothing was changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, HEAPS))


def set_aside_loaded() -> None:
    """Leave what was loaded out of every later search for cycles; call it once, before serving."""
    gc.collect()
    gc.freeze()
