"""Fuzz the record reader, guided by coverage: ``python -m surefoot.testing.fuzz --seconds 60``.

An input is the bytes of a file that claims to be a record; ``forge`` spoils it, and
``reader_contract`` says what must hold of it. Prints figures, and exits 1 on a finding.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from surefoot.testing.forge import INPUT_BYTES_MAX, mutated, seeds


def fuzz(arguments: list[str]) -> None:
    """Hand over to libFuzzer; does not return."""
    import atheris  # only whoever fuzzes has it

    with atheris.instrument_imports(include=["surefoot.record", "surefoot.identity", "json"]):
        from surefoot.testing.reader_contract import check

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        return mutated(data, seed, atheris.Mutate, most=most)

    atheris.Setup([sys.argv[0], *arguments], check, custom_mutator=mutator)
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Fuzz for so many seconds, print the figures, and return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz the record reader.")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden", type=Path, help="a folder of records to begin with")
    parser.add_argument("--corpus", type=Path, help="where to keep what was interesting")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        for path in sorted(options.golden.glob("*.rec")) if options.golden else ():
            (corpus / path.name).write_bytes(path.read_bytes())
        return _run(
            [
                f"-max_total_time={options.seconds}",
                f"-max_len={INPUT_BYTES_MAX}",
                f"-seed={options.seed}",
                "-timeout=10",
                "-rss_limit_mb=2048",
                f"-artifact_prefix={corpus}/found-",
                "-print_final_stats=1",
                str(corpus),
            ]
        )


def _run(flags: list[str]) -> int:
    """Run libFuzzer in a process of its own, since it ends the one that it is in."""
    command = [sys.executable, "-m", "surefoot.testing.fuzz", "--inside", *flags]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    said = done.stderr
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", said)
    if executions and covered:
        cov, features, corpus = covered[-1]
        print(
            f"{int(executions[0]):,} executions; {cov} edges, {features} features covered; "
            f"{corpus} inputs in the corpus"
        )
    if done.returncode or not executions:
        lines = [line for line in said.splitlines() if not re.match(r"#\d+\t", line)]
        print("\n".join(lines[-30:]))
        print("FOUND: the reader broke a promise; --corpus DIR keeps the input that shows it")
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        fuzz(sys.argv[2:])
    sys.exit(main(sys.argv[1:]))
