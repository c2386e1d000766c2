"""The servers that are probed: where they come from, how they are started, what they load.

All of them serve the weights of SmolLM2-135M-Instruct out of one GGUF file, but for ``spark``, our
own model that sees. llama-server computes with the packed weights; vLLM and we with the same ones
unpacked to bfloat16. Settings are each server's defaults, but for what two cores and a prefix cache
need.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from surefoot import __version__

XLLAMACPP = "2026.10.11549"
VLLM = "0.32.0"
TORCH = "2.13.0+cpu"  # the suffix keeps pip from taking a build of several gigabytes for GPUs
THREADS = 2
CONTEXT_TOKENS = 8192  # SmolLM2's own
HERE = Path(__file__).parent
GGUF_FILE = "smollm2.gguf"
HF_FOLDER = "smollm2-hf"


@dataclass(frozen=True, slots=True)
class Peer:
    """One server.

    Attributes:
        name: what the command line, its files and its environment are called.
        server: what the table calls it.
        version: as installed.
        weights: what it loads, in words.
        command: its argument vector; ``{home}`` is the folder of all peers, ``{env}`` its own
            environment, ``{port}`` where it listens, and ``{state}`` a folder that is empty at
            first and survives a restart.
        variables: what its process is told beside our own environment.
        installs: what follows ``pip install``, a line at a time; none for what runs in ours.
    """

    name: str
    server: str
    version: str
    weights: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    installs: tuple[tuple[str, ...], ...] = ()

    def argv(self, home: Path, port: int) -> list[str]:
        """Return the command that serves on ``port``."""
        places = {
            "home": home,
            "env": home / self.name,
            "port": port,
            "state": state_folder(home, self.name),
        }
        return [part.format(**places) for part in self.command]


def state_folder(home: Path, name: str) -> Path:
    """Return the folder that a peer's state survives a restart in."""
    return home / "state" / name


def _ours(model: str, weights: str) -> Peer:
    serve = (sys.executable, "-m", "surefoot", "serve", model)
    return Peer(
        name=model,
        server=f"surefoot, {model}",
        version=__version__,
        weights=weights,
        command=(*serve, "--port", "{port}", "--store", "{state}", "--threads", str(THREADS)),
    )


LLAMA = Peer(
    name="llama",
    server="llama-server (xllamacpp)",
    version=XLLAMACPP,
    weights="SmolLM2-135M-Instruct, Q4_1",
    command=(
        *("{env}/bin/python", str(HERE / "serve_llama.py"), f"{{home}}/{GGUF_FILE}"),
        *("--port", "{port}", "--threads", str(THREADS)),
    ),
    installs=((f"xllamacpp=={XLLAMACPP}",),),
)
VLLM_CPU = Peer(
    name="vllm",
    server="vLLM on CPU (vllm-cpu)",
    version=VLLM,
    weights="SmolLM2-135M-Instruct, bf16",
    # By its module: the command `vllm` asks for a package of that name, and here it has another.
    command=(
        *("{env}/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", f"{{home}}/{HF_FOLDER}", "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16"),
        *("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", "4", "--enforce-eager"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
    ),
    variables={
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(THREADS),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 46,592 tokens, small enough to come under pressure
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else one of two cores is kept for other work
        "VLLM_NO_USAGE_STATS": "1",
    },
    installs=(
        (f"torch=={TORCH}",),
        ("--no-deps", "--requirement", str(HERE / "vllm.txt")),
    ),
)
PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        LLAMA,
        VLLM_CPU,
        _ours("smollm2", "SmolLM2-135M-Instruct, bf16"),
        _ours("spark", "spark, bf16"),
    )
}
