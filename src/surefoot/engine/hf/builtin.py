"""Models that are served by a name of their own, and the block length that suits each.

``spark`` sees and lies in this package; ``smollm2`` reads, and comes with a package of its own
(``smollm2.weights_file``).
"""

from pathlib import Path

SMOLLM2 = "smollm2"
SPARK = "spark"
NAMES = (SMOLLM2, SPARK)

_BLOCK_TOKENS = 256
# A picture is 4 to 9 tokens and a question about it 20 to 40: the second one must find a boundary.
_SPARK_BLOCK_TOKENS = 16


def default_block_tokens(model: str) -> int:
    """Return the grid's step for ``model``, a built-in name or anything else that is served."""
    return _SPARK_BLOCK_TOKENS if model == SPARK else _BLOCK_TOKENS


def spark_folder() -> Path:
    """Return the folder that holds the weights of ``spark``."""
    return Path(__file__).with_name(SPARK)
