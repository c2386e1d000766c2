"""Tell from outside whether a server's cache can be believed.

The probe speaks HTTP to any OpenAI-shaped server and knows nothing of what is inside. Each leg
(``legs_*.py``) asks for what the cache may get wrong, on paths where it should be reused; one judge
(``judge.py``) compares what came back and ends the leg in one verdict (``verdicts.py``).

    asking.py      one request, one reply: what it said, what it counted, when its first token came
    plants.py      codes, openings and filler, drawn from the seed, and who was told which code
    acquaint.py    what this server offers, how noisy it is, how long prompts must be
    tasks.py       phrasings that the model is proven able to answer, on fresh prompts
    proofs.py      the same proof for tasks that are no hidden code
    trail.py       what a leg sees: cold, warm, plain and apart
    settle.py      what is asked after a leg: what failed again, references, more time
    witnesses.py   whether reuse took place: counters, and time against never-seen controls
    distance.py    how far two answers are apart, at their first tokens and where they part
    references.py  what an answer is compared with
    foreign.py     what only another request had: CONTAMINATED
    failures.py    what fails warm and not cold: WRONG; and what may be an accident
    judge.py       the verdict
    run.py         the legs in order, inside a budget
    publishing.py  what leaves the probe: no key, nothing that a page or a file cannot hold
    telling.py     verdicts and exchanges in words; page.py and junit.py write the reports

Of our own server it reads the receipt as one more counter of reuse, and never for a verdict.
"""
