"""Threads share two heaps, and the search for cycles leaves out what was loaded."""

import gc
import platform
import re
import subprocess
import sys

import pytest

from surefoot.cli.memory import set_aside_loaded

# Threads that are all alive while each of them allocates; then malloc says which heaps it has.
PROGRAM = """
import ctypes, sys, threading
from surefoot.cli.memory import bound_heaps

if sys.argv[1] == "bound":
    assert bound_heaps()
libc = ctypes.CDLL(None)
together = threading.Barrier(9)


def allocate():
    together.wait()
    libc.free(ctypes.c_void_p(libc.malloc(2000)))
    together.wait()


libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=allocate) for _ in range(8)]
for one in threads:
    one.start()
together.wait()
together.wait()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
for one in threads:
    one.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_eight_threads_have_two_heaps_and_would_have_more():
    def heaps(how):
        run = [sys.executable, "-c", PROGRAM, how]
        out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        return len(re.findall(r"<heap nr=", out))

    assert heaps("bound") == 2
    assert heaps("free") > 2


def test_what_is_there_when_serving_begins_is_set_aside_and_later_cycles_are_found():
    try:
        set_aside_loaded()
        assert gc.get_freeze_count() > 10_000
        cycle = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
