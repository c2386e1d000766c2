"""A trail that is written down instead of walked, for tests of what is made of it."""

from itertools import count

from surefoot.probe.asking import Asker, Reply, Token
from surefoot.probe.judge import judge
from surefoot.probe.legs import Facts
from surefoot.probe.plants import Plants
from surefoot.probe.trail import Budget, Request, Role, Seen, Trail
from surefoot.probe.witnesses import Timed

RATE = 0.01
COUNTED = Facts(counters=("cached_tokens",), noise_nat=0.0)
UNCOUNTED = Facts(noise_nat=0.0)
COLD_S, WARM_S = 1.0, 0.1


class Scene:
    """Exchanges by hand; times differ by a hair, as real ones do."""

    def __init__(self, controls=8, logprobs=True):
        self.logprobs = logprobs
        self.plants = Plants(1)
        self.asker = Asker("http://nowhere/v1", clock=lambda: 0.0)
        self.trail = Trail(
            self.asker, self.plants, Budget(10**9, 1e9, 0.0), lambda _: None, [], name="leg"
        )
        self._hair = count()
        self.trail.controls += [Timed(700, self.time(COLD_S)) for _ in range(controls)]

    def time(self, seconds):
        return seconds + next(self._hair) * 1e-4

    def request(self, label, code=None, others=(), **body):
        text = f"My code is {code}." if code else label
        whole = {"messages": [{"role": "user", "content": text}], **body}
        request = Request(label, whole, expected=code, others=others)
        self.plants.told(f"leg: {label}", whole)
        return request

    def saw(self, role, request, text, *, seconds=None, cached=0, logprob=-0.1, error=None):
        quick = WARM_S if role in (Role.WARM,) else COLD_S
        reply = Reply(
            status=200,
            text=text,
            finish="stop",
            prompt_tokens=700,
            completion_tokens=4,
            counters={"cached_tokens": cached},
            tokens=self.tokens(text, logprob) if self.logprobs else None,
            ttft_s=self.time(quick if seconds is None else seconds),
            error=error,
        )
        seen = Seen(request, reply, role)
        self.trail.seen.append(seen)
        return seen

    def tokens(self, text, logprob):
        second = -2.0 if -100 < logprob < 0 else -9999.0
        return (Token(text[:1], logprob, ((text[:1], logprob), ("?", second))),)

    def pair(self, request, text, warm_text=None, times=3, **changes):
        """A request asked cold once and warm some times."""
        self.saw(Role.COLD, request, text)
        changes = {"cached": 512} | changes
        for _ in range(times):
            self.saw(Role.WARM, request, text if warm_text is None else warm_text, **changes)

    def cold_answers(self, right, wrong=0):
        """Never-seen prompts with a code each, and how many of them are answered right."""
        for number in range(right + wrong):
            code = self.plants.code()
            text = code if number < right else "I do not know."
            self.saw(Role.COLD, self.request(f"cold {number}", code), text)

    def twins(self, wides, talls):
        """Pairs of pictures by the logprobs of their answers, after a leg that is clean."""
        code = self.plants.code()
        self.pair(self.request("A", code), code)
        pairs = []
        for number, (wide, tall) in enumerate(zip(wides, talls, strict=True)):
            donor = self.saw(Role.PLAIN, self.request(f"wide {number}"), "Red", logprob=wide)
            accused = self.saw(Role.PLAIN, self.request(f"tall {number}"), "Red", logprob=tall)
            self.trail.twins.append((accused, donor, "the pictures differ"))
            pairs.append(accused)
        return pairs

    def verdict(self, facts=COUNTED, unsettled=None):
        return judge(self.trail, facts, RATE, unsettled)
