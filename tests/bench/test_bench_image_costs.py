"""What an image costs beside the tower is measured step by step, and the share is of the whole."""

import torch

from surefoot.bench import image_costs
from surefoot.bench.tables import Bench
from surefoot.engine.hf.vision import Vision
from surefoot.testing.families import IMAGE_FAMILIES


def test_every_step_is_a_row_and_the_shares_are_of_one_whole(tmp_path, monkeypatch):
    settings = {"vision_config": IMAGE_FAMILIES["qwen3_vl"].config["vision_config"]}
    settings["vision_config"] = settings["vision_config"] | {"patch_size": 16}
    family = IMAGE_FAMILIES["qwen3_vl"].build(torch.float32, **settings)
    monkeypatch.setattr(image_costs, "full_size_tower", lambda *, threads: Vision(family))
    monkeypatch.setattr(image_costs, "SIDE", 256)
    monkeypatch.setattr(image_costs, "REPEATS", 1)
    table = image_costs.image_costs(Bench(tmp_path, tmp_path, lambda line: None))
    steps = [row[0] for row in table.rows]
    assert "run the tower" in steps
    assert len(steps) == 7
    shares = [float(row[2].rstrip("%")) for row in table.rows]
    assert abs(sum(shares) - 100) < 0.1
    tower = shares[steps.index("run the tower")]
    assert table.targets[0][1] is (100 - tower <= 5)
    assert "64 tokens" in table.title
