"""Train spark from nothing, in three stages, by steps that are counted and never by the clock.

    vision   the tower alone, with four throw-away heads that name what a picture shows
    text     the text part alone: copying, short lists of facts, codes in a little text
    joint    both together, on everything

The first two do not read one another and may run at the same time. Each stage writes its weights
into the work folder; the last one also writes the checkpoint. One thread, every draw from the seed:
the same machine and the same libraries give the same bytes.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3_5ForConditionalGeneration

from models.spark import lessons, pictures
from models.spark.batches import IGNORED, Batch, Encoder, Grid, patches
from models.spark.checkpoint import write_checkpoint
from models.spark.faster import make_training_fast
from models.spark.fonts import Fonts, training_fonts
from models.spark.network import HIDDEN, starting_network
from models.spark.pictures import COLORS, SHAPES, Picture
from models.spark.tokenizer import build_tokenizer

LABELS: dict[str, Callable[[Picture], int]] = {
    "color": lambda picture: COLORS.index(picture.color),
    "background": lambda picture: _or_ignored(COLORS, picture.background),
    "shape": lambda picture: _or_ignored(SHAPES, picture.shape),
    "digit": lambda picture: IGNORED if picture.digit is None else picture.digit,
}
CLASSES = {"color": len(COLORS), "background": len(COLORS), "shape": len(SHAPES), "digit": 10}
IMAGES_PER_STEP = 64
REPORT_EVERY = 50
SAVE_EVERY = 200
# Float32 is a third faster here than autocast; the last steps of the joint stage are made under
# bfloat16 all the same, so that the weights have met the rounding they are served in.
HALF_SHARE = 0.12

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each stage is, in steps, and the seed of every draw."""

    seed: int = 1
    vision_steps: int = 3000
    text_steps: int = 320
    joint_steps: int = 1600


class Rates(NamedTuple):
    """A learning rate's course: linear to ``peak`` in ``warm_steps``, then a cosine to ``last``."""

    peak: float
    warm_steps: int
    last: float

    def at(self, step: int, steps: int) -> float:
        """Return the rate for the step, counted from 0."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        return min(1.0, (step + 1) / self.warm_steps) * (
            self.last + (self.peak - self.last) * cosine
        )


VISION_RATES = Rates(3e-3, 40, 1.5e-4)
TEXT_RATES = Rates(2e-3, 20, 4e-5)
JOINT_RATES = Rates(2e-3, 20, 4e-5)


def train_vision(plan: Plan, work: Path, say: Say) -> None:
    """Write ``vision.safetensors``: the tower, trained to name what it sees."""
    _prepare()
    fonts, rng = training_fonts(), Random(f"{plan.seed} vision")
    tower = starting_network(build_tokenizer(plan.seed), plan.seed).model.visual.train()
    heads = nn.ModuleDict({task: nn.Linear(HIDDEN, count) for task, count in CLASSES.items()})
    trained = nn.ModuleList((tower, heads))
    optimizers = _optimizers(trained)
    groups = _equal_grids(rng, fonts)
    progress = Progress("vision", plan.vision_steps, say)
    for step in range(plan.vision_steps):
        grid, pixels, shown = next(groups)
        frames = torch.tensor([[1, *grid]] * len(shown))
        seen = tower(pixels, grid_thw=frames).pooler_output
        features = seen.view(len(shown), -1, HIDDEN).mean(1)
        loss = torch.zeros(())
        for task, head in heads.items():
            wanted = torch.tensor([LABELS[task](picture) for picture in shown])
            there = wanted != IGNORED
            if there.any():
                guessed = head(features[there])
                loss = loss + F.cross_entropy(guessed, wanted[there], reduction="sum") / len(shown)
                progress.note(task, _share_right(guessed, wanted[there]))
        _descend(loss, trained, optimizers, VISION_RATES.at(step, plan.vision_steps))
        progress.tick(step, IMAGES_PER_STEP)
    _save(tower, work / "vision.safetensors")
    progress.record(work)


def train_text(plan: Plan, work: Path, say: Say) -> None:
    """Write ``text.safetensors``: the text part, taught to copy and to look up."""
    _prepare()
    rng = Random(f"{plan.seed} text")
    tokenizer = build_tokenizer(plan.seed)
    network, encoder = starting_network(tokenizer, plan.seed).train(), Encoder(tokenizer)
    part = network.model.language_model
    optimizers = _optimizers(part)
    progress = Progress("text", plan.text_steps, say)
    for step in range(plan.text_steps):
        batch = encoder.batch(lessons.first_text(rng, step / plan.text_steps))
        loss, right = _loss(network, batch)
        progress.note("right", right)
        _descend(loss, part, optimizers, TEXT_RATES.at(step, plan.text_steps))
        progress.tick(step, batch.labels.numel())
    _save(part, work / "text.safetensors")
    progress.record(work)


def train_joint(plan: Plan, work: Path, checkpoint: Path, say: Say) -> None:
    """Write ``joint.safetensors`` and the checkpoint folder, from the first two stages' weights."""
    _prepare()
    fonts, rng = training_fonts(), Random(f"{plan.seed} joint")
    tokenizer = build_tokenizer(plan.seed)
    network, encoder = starting_network(tokenizer, plan.seed).train(), Encoder(tokenizer)
    network.model.visual.load_state_dict(load_file(work / "vision.safetensors"))
    network.model.language_model.load_state_dict(load_file(work / "text.safetensors"))
    optimizers = _optimizers(network)
    progress = Progress("joint", plan.joint_steps, say)
    for step in range(plan.joint_steps):
        done = step / plan.joint_steps
        picture_batch = encoder.batch(lessons.pictures(rng, fonts))
        text_batch = encoder.batch(lessons.text(rng, done, fonts))
        half = done >= 1 - HALF_SHARE
        tokens = 0
        for name, batch in (("pictures", picture_batch), ("text", text_batch)):
            loss, right = _loss(network, batch, half=half)
            torch.autograd.backward(loss)
            progress.note(name, right)
            tokens += batch.labels.numel()
        _descend(None, network, optimizers, JOINT_RATES.at(step, plan.joint_steps))
        progress.tick(step, tokens)
        if (step + 1) % SAVE_EVERY == 0:
            _save(network, work / "joint.safetensors")
    _save(network, work / "joint.safetensors")
    write_checkpoint(network, tokenizer, checkpoint)
    progress.record(work)


class Progress:
    """Running means of what training reports, and a line now and then."""

    def __init__(self, stage: str, steps: int, say: Say) -> None:
        self._stage, self._steps, self._say = stage, steps, say
        self._means: dict[str, float] = {}
        self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()
        self._seen = 0

    def note(self, name: str, value: float) -> None:
        """Mix a value into the mean of the last thirty or so."""
        self._means[name] = 0.97 * self._means.get(name, value) + 0.03 * value

    def tick(self, step: int, seen: int) -> None:
        """Count a step; say how far training is at every REPORT_EVERY-th and at the last."""
        self._seen += seen
        if (step + 1) % REPORT_EVERY and step + 1 != self._steps:
            return
        wall_s = time.perf_counter() - self._started_s
        means = "  ".join(f"{name} {value:.3f}" for name, value in self._means.items())
        self._say(
            f"{self._stage} {step + 1}/{self._steps}  {wall_s:.0f} s wall  "
            f"{self._seen / wall_s:.0f}/s  {means}"
        )

    def record(self, work: Path) -> None:
        """Write how long the stage took into ``<stage>.json`` of the work folder."""
        took = {
            "stage": self._stage,
            "steps": self._steps,
            "wall_s": round(time.perf_counter() - self._started_s),
            "processor_s": round(time.process_time() - self._started_cpu_s),
        }
        (work / f"{self._stage}.json").write_text(json.dumps(took) + "\n")


def _prepare() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    # Every buffer is written before it is read; filling them first costs a twentieth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    make_training_fast()


def _optimizers(trained: nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """Give matrices to Muon and the rest, embeddings among it, to AdamW."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in trained.named_parameters():
        matrix = parameter.ndim == 2 and "embed" not in name and min(parameter.shape) >= 16
        (matrices if matrix else others).append(parameter)
    return (
        torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
    )


def _descend(
    loss: Tensor | None,
    trained: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    rate: float,
) -> None:
    """Take one step along the gradient, whose norm is cut at 1."""
    if loss is not None:
        torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _loss(
    network: Qwen3_5ForConditionalGeneration, batch: Batch, *, half: bool = False
) -> tuple[Tensor, float]:
    """Return the mean loss over the answers' tokens, and the share of them that is right."""
    wanted = batch.labels[:, 1:]
    there = wanted != IGNORED
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        hidden = network.model(**batch.inputs, use_cache=False).last_hidden_state
        guessed = network.lm_head(hidden[:, :-1][there])
    guessed = guessed.float()
    return F.cross_entropy(guessed, wanted[there]), _share_right(guessed, wanted[there])


def _share_right(guessed: Tensor, wanted: Tensor) -> float:
    return (guessed.argmax(-1) == wanted).float().mean().item()


def _equal_grids(rng: Random, fonts: Fonts) -> Iterator[tuple[Grid, Tensor, list[Picture]]]:
    """Yield pictures by the batch, all of one grid, as soon as a grid has enough of them."""
    waiting: dict[Grid, list[tuple[np.ndarray, Picture]]] = {}
    painters = (pictures.solid, pictures.shape, pictures.digit)
    while True:
        picture = rng.choices(painters, (0.1, 0.35, 0.55))[0](rng, fonts)
        values, grid = patches(picture.image)
        group = waiting.setdefault(grid, [])
        group.append((values, picture))
        if len(group) == IMAGES_PER_STEP:
            del waiting[grid]
            pixels = torch.from_numpy(np.concatenate([values for values, _ in group]))
            yield grid, pixels, [picture for _, picture in group]


def _or_ignored(names: tuple[str, ...], name: str | None) -> int:
    return IGNORED if name is None else names.index(name)


def _save(trained: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: value.clone() for name, value in trained.state_dict().items()}
    save_file(weights, path)
