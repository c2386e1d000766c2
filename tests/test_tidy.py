"""House rules as a test: what a reviewer should never have to say twice.

Each rule is a small function that reads one module and yields sentences; a sentence says what to do
instead. ``BROKEN`` keeps one line per rule that must be caught, so that no rule sleeps.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "surefoot"
TESTS = ROOT / "tests"
DOCS = ROOT / "docs"

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
POSITIONAL_MAX = 6
PUBLIC_NAMES_MAX = 15
# Asked at 10,000 (images), 13,000 (quarantine) and 17,000 (the probe): still one project.
SOURCE_LINES_MAX = 21_000


class Module(NamedTuple):
    """One source file, read and parsed; ``place`` is its path below ``surefoot/``."""

    place: str
    text: str
    tree: ast.Module


def module(path: Path) -> Module:
    text = path.read_text()
    return Module(path.relative_to(SRC).as_posix(), text, ast.parse(text))


MODULES = [module(path) for path in sorted(SRC.rglob("*.py"))]


def lives_in(place: str, homes: tuple[str, ...]) -> bool:
    """Whether a module is one of these files or lies below one of these folders."""
    return any(place == home or (home.endswith("/") and place.startswith(home)) for home in homes)


# --- who may import what -------------------------------------------------------------------------

HF, CLI, BENCH, KIT = "engine/hf/", "cli/", "bench/", "testing/"
PROBE = "probe/"
CLOCKED = (CLI, BENCH, KIT)

# The names that only these rooms may use, and what everybody else does instead.
ONLY_IN: dict[str, tuple[tuple[str, ...], str]] = {
    "blake3": (
        ("identity.py", "record/", "testing/forge.py"),
        "ask identity for a name, or record for a seal",
    ),
    "hashlib": ((), "names are BLAKE3 and are made in identity"),
    "zlib": (("record/",), "checksums belong to record"),
    "pickle": ((), "bytes that are read back have one form: record"),
    "marshal": ((), "bytes that are read back have one form: record"),
    "shelve": ((), "bytes that are read back have one form: record"),
    "copy.deepcopy": ((KIT,), "state is copied out by its law, never deep-copied and hoped for"),
    "torch": ((HF, KIT), "tensors live in engine/hf; everyone else sees host bytes"),
    "safetensors": ((HF, KIT), "weights are read in engine/hf"),
    "gguf": ((HF, KIT), "weights are read in engine/hf"),
    "transformers": ((HF, "chat/", KIT), "models live in engine/hf, tokenizers in chat"),
    "tokenizers": (("chat/", KIT), "text becomes tokens in chat"),
    "jinja2": (
        ("chat/", "probe/page.py", KIT),
        "templates are rendered in chat, and the probe's page",
    ),
    "numpy": (("chat/", KIT), "arrays are for images, in chat; everyone else sees bytes"),
    "PIL": (("chat/", "pictures.py", KIT), "images are decoded in chat and drawn in pictures"),
    "sqlite3": (("cache/",), "the inventory is the cache's"),
    "fastapi": (("server/",), "HTTP ends in server"),
    "starlette": (("server/",), "HTTP ends in server"),
    "uvicorn": (("server/", CLI, KIT), "HTTP ends in server; cli and the test kit start it"),
    "prometheus_client": (("server/",), "metrics derive from receipts, in server"),
    "asyncio": (("server/", PROBE, CLI, KIT), "below server everything is synchronous"),
    "httpx": (
        (BENCH, PROBE, CLI, KIT, "server/fetching.py"),
        "only black-box tools speak HTTP as a client, and what fetches a request's images",
    ),
    "typer": ((CLI,), "arguments are read in cli"),
    "rich": ((CLI, BENCH), "what a person reads on a terminal is written by cli"),
    "argparse": ((CLI, KIT), "arguments are read in cli"),
    "sys.argv": ((CLI, KIT), "arguments are read in cli and passed on"),
    "os.environ": ((CLI,), "the environment is read in cli and passed on"),
    "os.getenv": ((CLI,), "the environment is read in cli and passed on"),
    "os.putenv": ((CLI,), "the environment is set in cli"),
    "time": (CLOCKED, "take a clock as an argument; cli passes it in"),
    "datetime": (CLOCKED, "take a clock as an argument; cli passes it in"),
    "random": (("probe/plants.py", KIT), "take a seed; sampling owns its generator"),
    "secrets": ((CLI,), "take the secret or the id as an argument; cli makes it"),
    "uuid": ((CLI,), "take the id as an argument; cli makes it"),
    "tempfile": ((CLI, BENCH, KIT), "write aside in the folder you were given"),
    "subprocess": ((CLI, BENCH, KIT), "only cli, the benchmarks and the test kit start processes"),
    "multiprocessing": ((), "one process serves one model"),
    "signal": ((CLI, KIT), "signals are handled in cli"),
    "threading": (
        ("scheduler.py", "cache/", "tiers/", CLI, KIT),
        "stay synchronous; locks belong to the cache and the tiers",
    ),
}

# Starting a thread is rarer than holding a lock.
STARTS_A_THREAD = re.compile(
    r"\b(Thread|Timer|ThreadPoolExecutor|ProcessPoolExecutor|to_thread|run_in_executor"
    r"|start_new_thread|run_in_threadpool)\b"
)
THREAD_OWNERS = ("scheduler.py", "cache/courier.py", CLI, KIT)

# The outermost handlers: nothing stands behind them that could report a bug.
EDGES = ("server/edge.py", "server/app.py", "cli/app.py", "scheduler.py", "cache/courier.py", KIT)
UNTYPED_EDGES = (HF, "server/edge.py", "server/app.py", CLI, KIT)


def used_names(tree: ast.Module) -> Iterator[str]:
    """Yield every dotted name that a module imports or reaches through an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def local_names(tree: ast.Module) -> set[str]:
    """Return arguments and variables: ``time.x`` is no clock where ``time`` is a local name."""
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return arguments | stored


def imports_stay_home(one: Module) -> Iterator[str]:
    local = local_names(one.tree)
    for name in {name for name in used_names(one.tree) if name.split(".")[0] not in local}:
        for word, (homes, instead) in ONLY_IN.items():
            if (name == word or name.startswith(word + ".")) and not lives_in(one.place, homes):
                yield f"{name} may be used in {', '.join(homes) or 'no room'}: {instead}"


def threads_have_two_owners(one: Module) -> Iterator[str]:
    if not lives_in(one.place, THREAD_OWNERS):
        for node in ast.walk(one.tree):
            if isinstance(node, ast.Call) and STARTS_A_THREAD.search(ast.unparse(node.func)):
                yield (
                    f"line {node.lineno} starts a thread: hand the work to the scheduler or to "
                    "cache/courier.py"
                )


# --- how a module reads --------------------------------------------------------------------------


def sizes_are_bounded(one: Module) -> Iterator[str]:
    lines = one.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines: split it by what it does, at most {FILE_LINES_MAX}"
    for node in functions(one.tree):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{node.name} has {lines} lines: move arithmetic into pure leaves, at most 70"
        positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
        positional = [arg for arg in positional if arg not in ("self", "cls")]
        if len(positional) > POSITIONAL_MAX:
            yield f"{node.name} has {len(positional)} positional arguments: make them keyword-only"


def public_names_are_few(one: Module) -> Iterator[str]:
    for node in one.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            count = len(node.value.elts) if isinstance(node.value, ast.List) else 0
            if count > PUBLIC_NAMES_MAX and one.place.endswith("__init__.py"):
                yield f"{count} public names: a room shows at most {PUBLIC_NAMES_MAX}"


def docstrings_are_there(one: Module) -> Iterator[str]:
    if not ast.get_docstring(one.tree):
        yield "write a module docstring: what it is, and which invariants it keeps"
    yield from undocumented(one.tree)


def undocumented(owner: ast.AST) -> Iterator[str]:
    """Yield public functions and classes without a docstring; what a function holds is private."""
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("_") or overloads(node):
                continue
            if not ast.get_docstring(node):
                yield f"line {node.lineno}: {node.name} is public; say in a sentence what it does"
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node)


def overloads(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(one).endswith(("overload", ".setter")) for one in decorators)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def types_say_what_is_there(one: Module) -> Iterator[str]:
    for node in ast.walk(one.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "hasattr":
                yield f"line {node.lineno}: no hasattr; say in a type what you expect"
            defaulted = node.func.id == "getattr" and len(node.args) == 3
            if defaulted and not lives_in(one.place, UNTYPED_EDGES):
                yield f"line {node.lineno}: getattr with a default hides a missing name; use a type"
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: no global; give the state an owner and pass it in"


BROAD = ("Exception", "BaseException")


def bugs_are_not_caught(one: Module) -> Iterator[str]:
    if lives_in(one.place, EDGES):
        return
    for node in ast.walk(one.tree):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
            last = node.body[-1]
            # transformers raises anything: in engine/hf it may be renamed, but not swallowed.
            renamed = one.place.startswith(HF) and isinstance(last, ast.Raise)
            if not ((isinstance(last, ast.Raise) and last.exc is None) or renamed):
                yield f"line {node.lineno}: catch what you can act on, or end with a bare raise"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            broad = [ast.unparse(argument) for argument in node.args if is_broad(argument)]
            yield from (f"line {node.lineno}: suppress what you can name, not {b}" for b in broad)


def is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(is_broad(one) for one in caught.elts)
    return caught is None or ast.unparse(caught).split(".")[-1] in BROAD


# --- words ---------------------------------------------------------------------------------------

MARKS = re.compile(r"\b(" + "|".join(("FIX" + "ME", "HA" + "CK", "X" + "XX", "TO" + "DO")) + r")\b")

# Words refused in names, and the field's word or ours. Words with a second, proper meaning here
# (context, history, object, entry, load) are left to the reader of a change.
REFUSED = {
    "utils": "name the room by its job",
    "util": "name the room by its job",
    "helpers": "name the room by its job",
    "helper": "name the function by what it returns",
    "misc": "name the room by its job",
    "manager": "name the type by what it is",
    "handler": "name the function by what it does",
    "impl": "name the type by what it is",
    "segment": "say block",
    "segments": "say block",
    "anchor": "say boundary",
    "blob": "say part or record",
    "blobs": "say part or record",
    "bank": "say tier",
    "spill": "say commit or evict",
    "namespace": "say salt",
    "softmiss": "say miss, with its reason",
}


def words_are_ours(one: Module) -> Iterator[str]:
    for line, text in enumerate(one.text.splitlines(), 1):
        if found := MARKS.search(text):
            yield f"line {line}: {found[0]}: do it now, or file it where work is kept"
    for name in {*defined_names(one.tree), one.place.removesuffix(".py")}:
        words = {*split_words(name), name.replace("_", "").lower()}
        for word in sorted(words & set(REFUSED)):
            yield f"{name}: {REFUSED[word]}"


def split_words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives: functions, classes, arguments, variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


RULES = (
    imports_stay_home,
    threads_have_two_owners,
    sizes_are_bounded,
    public_names_are_few,
    docstrings_are_there,
    types_say_what_is_there,
    bugs_are_not_caught,
    words_are_ours,
)


@pytest.mark.parametrize("one", MODULES, ids=lambda one: one.place)
def test_a_module_keeps_the_house_rules(one):
    broken = [f"{one.place}: {message}" for rule in RULES for message in rule(one)]
    assert not broken, "\n".join(broken)


BROKEN = [
    (imports_stay_home, "turn/x.py", "import hashlib"),
    (imports_stay_home, "cli/x.py", "from hashlib import sha256"),
    (imports_stay_home, "cache/x.py", "from blake3 import blake3"),
    (imports_stay_home, "engine/x.py", "import torch.nn"),
    (imports_stay_home, "server/x.py", "from transformers import AutoModel"),
    (imports_stay_home, "tiers/x.py", "import sqlite3"),
    (imports_stay_home, "turn/x.py", "from fastapi import FastAPI"),
    (imports_stay_home, "cache/x.py", "import os\nos.environ.get('A')"),
    (imports_stay_home, "cache/x.py", "from os import environ"),
    (imports_stay_home, "cache/x.py", "from time import monotonic"),
    (imports_stay_home, "engine/hf/x.py", "import random"),
    (imports_stay_home, "identity.py", "import threading"),
    (imports_stay_home, "engine/hf/x.py", "import copy\ncopy.deepcopy(1)"),
    (threads_have_two_owners, "cache/ssd.py", "threading.Thread(target=print).start()"),
    (threads_have_two_owners, "server/x.py", "await asyncio.to_thread(f)"),
    (threads_have_two_owners, "tiers/x.py", "ThreadPoolExecutor(2)"),
    (sizes_are_bounded, "x.py", "\n" * 601),
    (sizes_are_bounded, "x.py", "def f():\n" + "    a\n" * 70),
    (sizes_are_bounded, "x.py", "def f(a, b, c, d, e, f, g): ..."),
    (public_names_are_few, "x/__init__.py", f"__all__ = {[str(n) for n in range(16)]}"),
    (docstrings_are_there, "x.py", "x = 1"),
    (docstrings_are_there, "x.py", '"""X."""\ndef f(): ...'),
    (docstrings_are_there, "x.py", '"""X."""\nclass A:\n    """A."""\n    def f(self): ...'),
    (types_say_what_is_there, "engine/hf/x.py", "hasattr(a, 'b')"),
    (types_say_what_is_there, "cache/x.py", "getattr(a, 'b', None)"),
    (types_say_what_is_there, "cli/x.py", "def f():\n    global a"),
    (bugs_are_not_caught, "turn/x.py", "try:\n    a\nexcept:\n    pass"),
    (bugs_are_not_caught, "turn/x.py", "try:\n    a\nexcept Exception:\n    pass"),
    (bugs_are_not_caught, "turn/x.py", "try:\n    a\nexcept (OSError, BaseException):\n    b"),
    (bugs_are_not_caught, "turn/x.py", "with suppress(Exception):\n    a"),
    (bugs_are_not_caught, "turn/x.py", "try:\n    a\nexcept Exception as b:\n    raise A from b"),
    (bugs_are_not_caught, "engine/hf/x.py", "try:\n    a\nexcept Exception:\n    b"),
    (words_are_ours, "x.py", "# FIX" + "ME later"),
    (words_are_ours, "cache/utils.py", ""),
    (words_are_ours, "x.py", "class TierManager: ..."),
    (words_are_ours, "x.py", "def soft_miss(): ..."),
    (words_are_ours, "x.py", "for segment in a: ..."),
    (words_are_ours, "x.py", "self.blob_bytes = 1"),
]
KEPT = [
    (imports_stay_home, "cache/x.py", "def f(time):\n    return time.real"),
    (imports_stay_home, "cli/x.py", "import time"),
    (imports_stay_home, "turn/x.py", "from surefoot.errors import SurefootError"),
    (threads_have_two_owners, "cache/courier.py", "Thread(target=print)"),
    (threads_have_two_owners, "cache/x.py", "with RLock(): ..."),
    (types_say_what_is_there, "engine/hf/x.py", "getattr(a, 'b', None)"),
    (types_say_what_is_there, "cache/x.py", "getattr(a, 'b')"),
    (bugs_are_not_caught, "turn/x.py", "try:\n    a\nexcept BaseException:\n    b\n    raise"),
    (bugs_are_not_caught, HF + "x.py", "try:\n    a\nexcept Exception as b:\n    raise A from b"),
    (words_are_ours, "x.py", "pooled = contextmanager(pagination)"),
]


@pytest.mark.parametrize(("rule", "place", "text"), BROKEN)
def test_a_broken_rule_is_noticed(rule, place, text):
    assert list(rule(Module(place, text, ast.parse(text)))), rule.__name__


@pytest.mark.parametrize(("rule", "place", "text"), KEPT)
def test_a_kept_rule_is_left_alone(rule, place, text):
    assert not list(rule(Module(place, text, ast.parse(text))))


def test_the_house_is_one_project():
    lines = sum(code_lines(one) for one in MODULES if not one.place.startswith(KIT))
    assert lines <= SOURCE_LINES_MAX, f"{lines} lines of code: should this be two projects?"


def code_lines(one: Module) -> int:
    """Count lines that are neither blank, comment nor docstring."""
    told: set[int] = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(one.tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            told |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate((line.strip() for line in one.text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and at not in told for at, line in lines)


# --- tests mirror the source ---------------------------------------------------------------------

NOT_UNITS = ("stateful", "faults", "golden", "e2e")  # folders of tests that are not of one module
TEST_FILES = sorted(TESTS.rglob("test_*.py"))
# Modules without a test file of their own, and the file that walks through them.
TESTED_THROUGH = {
    "cache/committing.py": "cache/test_cache_front.py",
    "cache/feature_ram.py": "cache/test_cache_features.py",
    "cache/figures.py": "cache/test_cache_store.py",
    "cache/inventory.py": "cache/test_cache_store.py",
    "cache/loading.py": "cache/test_cache_faults.py",
    "cache/opening.py": "cache/test_cache_store.py",
    "cache/reconcile.py": "cache/test_cache_store.py",
    "cache/restore.py": "cache/test_cache_front.py",
    "cli/tending.py": "cli/test_cli_app.py",
    "cache/shelves.py": "cache/test_cache_store.py",
    "cli/cache_commands.py": "cli/test_cli_app.py",
    "cli/folders.py": "cli/test_cli_app.py",
    "cli/serve.py": "e2e/test_smollm2_server.py",
    "engine/hf/forward.py": "engine/test_hf_run.py",
    "turn/ledger.py": "turn/test_turn_answer.py",
    "turn/request.py": "turn/test_turn_answer.py",
}
IMPORTED = {
    name
    for path in TESTS.rglob("*.py")
    for name in used_names(ast.parse(path.read_text()))
    if name.startswith("surefoot.")
}


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_test_lies_where_its_room_does(path):
    folder = path.relative_to(TESTS).parts[0]
    if path.parent != TESTS and folder not in NOT_UNITS:
        homes = (SRC / folder, SRC / f"{folder}.py", ROOT / folder)  # models/ is beside src/
        assert any(home.exists() for home in homes), (
            f"tests/{folder}/ mirrors no room; units lie in their room's folder"
        )


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_test_file_says_what_it_claims(path):
    assert ast.get_docstring(ast.parse(path.read_text())), "write what this file proves"


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_test_waits_on_facts_and_not_on_time(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "sleep":
            assert ast.unparse(node.args[0]) == "0", (
                f"line {node.lineno}: wait on an event or a fact"
            )


def test_no_two_test_files_share_a_name():
    names = [path.name for path in TEST_FILES]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"pytest imports test files by name alone: rename one of {sorted(twice)}"


@pytest.mark.parametrize(
    "place", [one.place for one in MODULES if not one.place.endswith("__main__.py")]
)
def test_a_module_is_tested_by_name(place):
    """A module has a test file that is called after it, is imported by one, or is listed above."""
    *rooms, stem = place.removesuffix(".py").split("/")
    dotted = ".".join(["surefoot", *rooms, *([] if stem == "__init__" else [stem])])
    word = rooms[-1] if stem == "__init__" and rooms else stem
    called = any(f"_{word}.py" in path.name or f"_{word}_" in path.name for path in TEST_FILES)
    imported = any(name == dotted or name.startswith(dotted + ".") for name in IMPORTED)
    through = place in TESTED_THROUGH and (TESTS / TESTED_THROUGH[place]).is_file()
    assert called or imported or through or place == "__init__.py", (
        f"{place}: write tests/{'/'.join(rooms)}/test_{'_'.join([*rooms, stem])}.py"
    )


# --- invariants ----------------------------------------------------------------------------------

INVARIANTS = [f"I{n}" for n in range(1, 14)]
CITED = re.compile(r"\bI\d+\b")


def citing(number: str, folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path != Path(__file__) and number in CITED.findall(path.read_text())
    ]


@pytest.mark.parametrize("number", INVARIANTS)
def test_an_invariant_is_cited_where_it_is_kept_and_where_it_is_attacked(number):
    kept = [path for path in citing(number, SRC) if SRC / "testing" not in path.parents]
    attacked = citing(number, TESTS) + citing(number, SRC / "testing")
    assert kept, f"cite ({number}) in the code that keeps it"
    assert attacked, f"cite ({number}) in the test that tries to break it"


def invariant_rows() -> dict[str, tuple[list[str], list[str]]]:
    """Read docs/INVARIANTS.md: number -> files where it is kept, files where it is tested."""
    rows = {}
    for line in (DOCS / "INVARIANTS.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and CITED.fullmatch(cells[0]):
            rows[cells[0]] = (re.findall(r"`(.+?)`", cells[2]), re.findall(r"`(.+?)`", cells[3]))
    return rows


def test_the_table_of_invariants_is_whole():
    assert list(invariant_rows()) == INVARIANTS


@pytest.mark.parametrize("number", INVARIANTS)
def test_the_table_of_invariants_is_true(number):
    kept, tested = invariant_rows()[number]
    assert kept, f"docs/INVARIANTS.md: say where {number} is kept"
    assert tested, f"docs/INVARIANTS.md: say what tests {number}"
    for name, folder in itertools.chain(
        ((name, SRC) for name in kept), ((name, ROOT) for name in tested)
    ):
        path = folder / name
        assert path.is_file(), f"docs/INVARIANTS.md: {number} points at {name}, which is not there"
        assert number in CITED.findall(path.read_text()), f"{name} does not cite ({number})"


def test_no_invariant_is_cited_that_is_not_in_the_table():
    for path in (*SRC.rglob("*.py"), *TESTS.rglob("*.py")):
        strangers = set(CITED.findall(path.read_text())) - set(INVARIANTS)
        assert not strangers or path == Path(__file__), f"{path.name} cites {strangers}"


# --- pages ---------------------------------------------------------------------------------------

DECISIONS = DOCS / "decisions"
QUESTIONS = ("Context", "Decision", "What it costs", "(What we r|R)ejected", "How we would know")


def test_every_decision_is_in_the_index_and_every_number_is_taken_once():
    files = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))
    index = (DECISIONS / "README.md").read_text()
    missing = [name for name in files if f"({name})" not in index]
    assert not missing, f"list in docs/decisions/README.md: {missing}"
    assert [name[:4] for name in files] == [f"{n:04}" for n in range(1, len(files) + 1)]


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda path: path.name)
def test_a_decision_answers_five_questions(path):
    text = path.read_text()
    found = [re.search(rf"^## {question}", text, re.MULTILINE) for question in QUESTIONS]
    missing = [q for q, match in zip(QUESTIONS, found, strict=True) if match is None]
    assert not missing, f"answer under a heading of its own: {missing}"


CHANGE_KINDS = ("added", "changed", "fixed", "removed", "format", "security")


def test_change_notes_are_named_by_id_and_kind():
    for path in (ROOT / "changes").iterdir():
        kinds = "|".join(CHANGE_KINDS)
        assert path.name == "README.md" or re.fullmatch(rf"[\w-]+\.({kinds})\.md", path.name), (
            f"name it <id>.<kind>.md, kind one of {', '.join(CHANGE_KINDS)}: {path.name}"
        )


def test_the_architecture_fits_on_a_few_screens():
    lines = (ROOT / "ARCHITECTURE.md").read_text().count("\n")
    assert lines <= 150, f"{lines} lines: say less, or say it where it is true"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/GLOSSARY.md", "docs/INVARIANTS.md"])
def test_every_source_file_that_a_page_names_is_there(page):
    for name in re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()):
        found = [folder for folder in (SRC, TESTS, ROOT) if (folder / name).exists()]
        assert found, f"{page} names {name}, which is not there"


def test_every_room_is_in_the_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {one.place.split("/")[0] for one in MODULES} - {"__init__.py", "__main__.py"}
    rooms = {room if room.endswith(".py") else f"{room}/" for room in rooms}
    missing = {room for room in rooms if f"`{room}`" not in text}
    assert not missing, f"ARCHITECTURE.md does not say what these are: {sorted(missing)}"


TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}
WORKPLACE = "/wo" + "rk/"
GENERATED = {".git", ".venv", ".peers", "build", "dist", "__pycache__"}


def test_no_file_names_the_folder_it_was_written_in():
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(part in GENERATED or part.endswith(("_cache", ".egg-info")) for part in parts)
        if hidden or path.suffix not in TEXT or not path.is_file() or parts[0] == ".hypothesis":
            continue
        text = path.read_text(errors="replace")
        assert WORKPLACE not in text, f"{path.relative_to(ROOT)} names {WORKPLACE}"
