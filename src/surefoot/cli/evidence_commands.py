"""``surefoot cache capture`` and ``surefoot cache explain``: evidence to share, and to read."""

import shutil
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot.cache.capture import Names, Progress, capture_turn, write_capture
from surefoot.cache.captured import read_capture
from surefoot.cli import exits
from surefoot.cli.explain import Section, compare, contradictions, disagreements, explain
from surefoot.errors import SetupError

_WIDEST = 100  # columns; longer lines are hard to read
_SHOWN_TEXTS = ("dtype", "device")

Id = Annotated[str, typer.Argument(help="The receipt's id, as an answer or the log shows it.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="the file to write")]
Store = Annotated[
    str, typer.Option("--store", help="folder of the SSD tier; default: in the user's cache")
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain-names",
        help="names as they are in the store; whoever guesses the prompt could confirm it",
    ),
]
Captured = Annotated[Path, typer.Argument(help="A capture.")]
Other = Annotated[Path | None, typer.Argument(help="Another capture, to compare.")]


def register(
    app: typer.Typer, folder: Callable[[str], Path], progress: Callable[[str], Progress]
) -> None:
    """Add the two commands.

    Args:
        app: the commands of ``surefoot cache``.
        folder: turns the flag ``--store`` into the store's folder.
        progress: shows how far long work is, under a verb.
    """

    @app.command("capture")
    def _capture(
        receipt_id: Id, *, output: Output, store: Store = "", plain_names: Plain = False
    ) -> None:
        """Write what one answer stood on to a file that can be shared: no text, no tokens."""
        names = Names.PLAIN if plain_names else Names.KEYED
        found = capture_turn(
            folder(store),
            receipt_id,
            now=time.time(),
            names=names,
            progress=progress("looked at record"),
        )
        try:
            write_capture(output, found)
        except OSError as error:
            raise SetupError(f"{output} cannot be written: {error.strerror}") from error
        nbytes = output.stat().st_size
        print(f"{output}: {len(found['records'])} records, {nbytes:,} bytes, no text and no tokens")

    @app.command("explain")
    def _explain(file: Captured, other: Other = None) -> None:
        """Say in plain words what a capture shows, or where two prompts part."""
        first = read_capture(file)
        if other is None:
            show(explain(first))
            wrong = contradictions(first)
        else:
            second = read_capture(other)
            for path, found in ((file, first), (other, second)):
                if len(found["turns"]) != 1:
                    raise SetupError(
                        f"{path} is of {len(found['turns'])} turns; compare two of one"
                    )
            show(compare(first, second))
            wrong = disagreements(first, second)
        raise typer.Exit(exits.DIFFERS if wrong else exits.OK)


def show(sections: Sequence[Section]) -> None:
    """Print sections, wrapped to the terminal, without what could move its cursor."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    wrap = textwrap.TextWrapper(
        width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
    )
    for section in sections:
        print(_printable(section.title))
        for line in section.lines or ["Nothing."]:
            print(wrap.fill(_printable(line)))
        print()


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def shared_settings(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of a server as a capture may show them: no paths, keys or hosts."""
    shown: dict[str, Any] = {
        key: value
        for key, value in options.items()
        if isinstance(value, int | float) or value is None or key in _SHOWN_TEXTS
    }
    for key, value in options.items():
        if isinstance(value, list | tuple):
            shown[key] = len(value)
    shown["store"] = "off" if options.get("store") is None else "on"
    return shown
