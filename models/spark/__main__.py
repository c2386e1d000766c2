"""Make spark: train it, write its checkpoint, evaluate it, write the card's table.

python -m models.spark                  all of it, on one core
python -m models.spark vision           one stage; vision and text may run at the same time
python -m models.spark text
python -m models.spark joint
python -m models.spark evaluate
"""

import argparse
import sys
from pathlib import Path

from models.spark.card import write_card
from models.spark.checkpoint import CHECKPOINT
from models.spark.evaluate import evaluate, write_results
from models.spark.train import Plan, train_joint, train_text, train_vision

HERE = Path(__file__).parent
STAGES = ("vision", "text", "joint", "evaluate")


def main() -> None:
    """Run the stages that the command line names."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m models.spark", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("stages", nargs="*", default=[], help="default: all, in order")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="the stages' weights")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="folder to write")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--vision-steps", type=int, default=usual.vision_steps)
    parser.add_argument("--text-steps", type=int, default=usual.text_steps)
    parser.add_argument("--joint-steps", type=int, default=usual.joint_steps)
    chosen = parser.parse_args()
    stages = chosen.stages or STAGES
    if unknown := set(stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    plan = Plan(chosen.seed, chosen.vision_steps, chosen.text_steps, chosen.joint_steps)
    if "vision" in stages:
        train_vision(plan, chosen.work, _say)
    if "text" in stages:
        train_text(plan, chosen.work, _say)
    if "joint" in stages:
        train_joint(plan, chosen.work, chosen.checkpoint, _say)
    if "evaluate" in stages:
        write_results(evaluate(chosen.checkpoint, _say))
        write_card()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
