"""Makes ``models/`` importable, which is no part of the package, and loads spark once."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def judge():
    import torch

    from models.spark.checkpoint import CHECKPOINT
    from models.spark.judge import Judge

    torch.set_num_threads(1)
    return Judge(CHECKPOINT)
