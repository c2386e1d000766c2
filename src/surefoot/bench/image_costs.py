"""What one image of a megapixel costs beside its run of a full-size vision tower.

Measured in this process, step by step, by the functions that a turn calls.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from surefoot import identity, pictures
from surefoot.bench.tables import Bench, Table, median
from surefoot.chat import ImageLimits
from surefoot.chat.images import rgb_pixels
from surefoot.chat.processor import load_processor
from surefoot.chat.request import Image
from surefoot.engine.hf import full_size_tower
from surefoot.identity import ModelName
from surefoot.record import content, seal_features, unseal_features
from surefoot.settings import THREADS

SIDE = 1024
REPEATS = 3
SHARE_TARGET = 0.05
# As the hub's Qwen3-VL checkpoints state them.
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
}

T = TypeVar("T")


def image_costs(bench: Bench) -> Table:
    """Measure decoding, processing, naming, sealing and verifying against encoding."""
    (bench.folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    processor = load_processor(str(bench.folder))
    bench.say("building a tower of random weights")
    vision = full_size_tower(threads=THREADS.default)
    model, salt = ModelName(b"m" * 32), identity.salt_of(None, None)
    times: dict[str, list[float]] = {}

    def timed(step: str, run: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = run()
        times.setdefault(step, []).append(time.perf_counter() - started)
        return result

    for number in range(REPEATS):
        file = Image(pictures.photo(number, SIDE, SIDE), "bench")
        pixels = timed("decode the file (PNG)", partial(rgb_pixels, file, "bench", ImageLimits()))
        make = partial(processor.item, pixels, place="bench", param="bench")
        item = timed("process and name", make)
        features = timed("run the tower", partial(vision.encode, item))
        name = identity.feature_name(model, salt, item.name)
        digest = timed("digest features", partial(content, features))
        facts: dict[str, Any] = {
            "model": model,
            "media": item.name,
            "tokens": item.tokens,
            "content": digest,
        }
        record = timed("seal features", partial(seal_features, name, features, **facts))
        _, read = timed("check the seal", partial(unseal_features, record, name=name))
        assert timed("check the content", partial(content, read)) == digest
        bench.say(f"round {number + 1}: the tower took {times['run the tower'][-1]:.2f} s")
    middle = {step: median(taken) for step, taken in times.items()}
    tower = middle["run the tower"]
    ours = sum(middle.values()) - tower
    share = ours / (ours + tower)
    return Table(
        f"One image of {SIDE} x {SIDE}, {item.tokens:,} tokens, {features.nbytes / 1e6:.0f} MB of "
        "features (Qwen3VLVisionConfig's defaults, random, bf16)",
        ("step", "median", "share"),
        tuple(
            (step, f"{took * 1000:.1f} ms", f"{took / (ours + tower):.2%}")
            for step, took in middle.items()
        ),
        ((f"all but the tower at most {SHARE_TARGET:.0%}", share <= SHARE_TARGET),),
    )
