"""What a live sequence holds is what its groups say: by it, turns are let in or made to wait.

Held is what is allocated, buffers with their room to grow, each storage once, whoever views it.
"""

import pytest
import torch

from surefoot.engine import Sampling
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.sampling import choose
from surefoot.engine.hf.table import inspect
from surefoot.laws import RecurrentSnapshot, TokenRows
from surefoot.prompt import Prompt, grid
from surefoot.state import STEP_ROWS, state_bytes
from surefoot.testing.families import FAMILIES, VOCABULARY, model
from surefoot.testing.live_state import held_bytes

torch.set_num_threads(1)
LENGTHS = (1, 40, STEP_ROWS - 2, STEP_ROWS + 90)
FED = 3


def grown(subject, table, length, step):
    """Yield a run's live cache and its tokens, after its prefill and after a few more tokens."""
    draw = torch.Generator().manual_seed(length)
    ids = torch.randint(VOCABULARY, (length,), generator=draw).tolist()
    run = HfRun(subject, table, Prompt.of(ids), Sampling(), choose=choose)
    for end in dict.fromkeys((*grid(Prompt.of(ids), step), length)):
        run.prefill(end)
    yield run._cache, length
    for token in range(FED):
        run.feed(token)
    yield run._cache, length + FED
    run.close()


# Of what the groups say. Window layers hold a few bytes of constants beside their rows; DeepSeek
# V4's keep the tokens that are not pooled yet, and the gates of those that are.
AT_MOST = {"deepseek_v4": 3.2}
AT_LEAST = {"deepseek_v4": 0.3}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_live_sequence_holds_what_its_groups_say(name):
    family = FAMILIES[name]
    subject = model(name, torch.bfloat16, family.attentions[0])
    table = inspect(subject, block_tokens=family.block_tokens)
    for length in LENGTHS:
        for cache, tokens in grown(subject, table, length, family.block_tokens):
            share = held_bytes(cache) / state_bytes(table.groups, tokens, family.block_tokens)
            assert AT_LEAST.get(name, 0.9) < share < AT_MOST.get(name, 1.001), (tokens, share)
            if all(isinstance(one.law, TokenRows | RecurrentSnapshot) for one in table.groups):
                assert share == 1, tokens
