"""An event loop whose clock jumps to the next timer when nothing else is to be done.

Minutes of a story pass at once, and every deadline falls on its second. Nothing outside the loop
may be waited for: there is nobody who could wake it.
"""

import asyncio


class Clockwork(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self._now = 0.0
        selected = self._selector.select

        def select(timeout):
            ready = selected(0)
            if not ready and timeout != 0:
                assert timeout is not None, "nothing will ever happen"
                self._now += timeout
            return ready

        self._selector.select = select

    def time(self):
        return self._now


def play(story):
    """Run a coroutine by this clock."""
    with asyncio.Runner(loop_factory=Clockwork) as runner:
        return runner.run(story)


def now():
    return asyncio.get_running_loop().time()


async def pause(seconds):
    """Let the clock run on."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, passed.set_result, None)
    await passed
