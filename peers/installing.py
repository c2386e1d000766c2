"""Set a peer up in an environment of its own, once for each list of what it installs."""

import subprocess
import sys
from pathlib import Path

from peers.servers import GGUF_FILE, HERE, HF_FOLDER, Peer


def install(peer: Peer, home: Path) -> None:
    """Create the environment of ``peer`` and fill it, unless that was done before.

    Raises:
        subprocess.CalledProcessError: pip could not; it has said why on stderr.
    """
    if not peer.installs:
        return
    env, stamp = home / peer.name, home / peer.name / "installed"
    wanted = _wanted(peer)
    if not (stamp.is_file() and stamp.read_text() == wanted):
        home.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "venv", "--clear", str(env))
        for arguments in peer.installs:
            _run(str(env / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments)
        stamp.write_text(wanted)
    if not ((home / GGUF_FILE).exists() and (home / HF_FOLDER).exists()):
        _lay_out_weights(home)


def _wanted(peer: Peer) -> str:
    lines = [" ".join(arguments) for arguments in peer.installs]
    if any("--requirement" in arguments for arguments in peer.installs):
        lines.append((HERE / "vllm.txt").read_text())
    return "\n".join(lines)


def _lay_out_weights(home: Path) -> None:
    """Put the GGUF file, and its weights as our own engine unpacks them, where peers look."""
    # Imported here: they take torch with them, and a restart should not wait for that.
    from surefoot.engine.hf.gguf import expanded  # noqa: PLC0415
    from surefoot.engine.hf.smollm2 import weights_file  # noqa: PLC0415

    file = weights_file()
    folder = expanded(file, home, lambda line: print(line, file=sys.stderr))
    for name, target in ((GGUF_FILE, file), (HF_FOLDER, folder)):
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target)


def _run(*command: str) -> None:
    print("$", *command, file=sys.stderr)
    subprocess.run(command, check=True)
