"""The engine on transformers; the only room that imports torch and model classes.

``load_engine`` is what a caller needs. Inside, ``table`` reads a model's cache layers into laws,
``run`` computes one sequence, ``load`` and ``gguf`` get weights, and ``fingerprint`` proves at
start-up that restored state computes the same bits (I5).
"""

from surefoot.engine.hf.engine import HfEngine
from surefoot.engine.hf.load import load_engine
from surefoot.engine.hf.measured import full_size_tower, stock_decode

__all__ = ["HfEngine", "full_size_tower", "load_engine", "stock_decode"]
