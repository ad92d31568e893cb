"""The rules of the house that no tool of ours checks otherwise. What breaks one is shown as file:line."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import weft.messages.asks
import weft.messages.events
import weft.messages.nodes
import weft.messages.serving
import weft.messages.sessions
import weft.messages.signals  # noqa: F401 - so that every message is defined
from weft.messages import Message
from weft.messages.events import JOB_SUBJECT, NODE_SUBJECT

ROOT = Path(__file__).parents[2]
SERVICES = ("arbiter", "cli", "executor", "gateway", "reallocator", "router", "scheduler", "scorer", "telemetry")

# What thinks lies in these libraries and in folders named `thinking`. What acts lies beside them.
PURE = (
    *(
        f"libs/weft/{lib}/**/*.py"
        for lib in ("domain", "health", "messages", "planning", "samples", "serving", "tuning", "variability")
    ),
    "services/weftd/**/thinking/**/*.py",
    "services/weftd/**/thinking.py",
)
IMPURE_MODULES = {
    *{"time", "random", "secrets", "uuid", "os", "pathlib", "shutil", "tempfile", "glob", "sys", "logging"},
    *{"asyncio", "threading", "concurrent", "multiprocessing", "subprocess", "signal", "select", "selectors", "socket"},
    *{"nats", "asyncpg", "aiohttp", "docker", "pynvml", "prometheus_client", "urllib", "requests", "uvloop"},
    *{"http.client", "http.server"},
}
IMPURE_LIBS = {"bus", "store", "service", "servers", "client", "credentials", "gpus", "cgroups", "sharing"}
# Modules beside those that act: they only define names, records and errors, so thinking may import them.
PURE_BESIDE = {
    "weft.cgroups.counters",
    "weft.sharing.records",
    "weftd.executor.channel",
    "weftd.executor.runs",
    "weftd.gateway.errors",
    "weftd.telemetry.counters",
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint", "globals"}
IMPURE_METHODS = {"now", "utcnow", "today"}  # of datetime and date
REFUSED_NAMES = {"utils", "util", "helpers", "helper", "common", "interfaces", "misc"}
# The edges, where whatever went wrong is told and the process goes on, or ends.
MAY_CATCH_ALL = {
    "libs/weft/service/run.py",  # a beat
    "libs/weft/aio/job.py",  # a user's function, with WEFT_LOCAL
    "libs/weft/client/call_program.py",  # a user's function, in its job
    "libs/weft/threads.py",  # one call in a thread, whose exception is its caller's
    "libs/weft/service/start.py",  # a service
    "libs/weft/bus/handling.py",  # the handling of one message
    "libs/weft/bus/nats_client.py",  # a reconnect
    "services/weftd/gateway/app.py",  # one request: 500
    "services/weftd/scheduler/scheduler_loop.py",  # one cycle, if one job, ask or node is at fault
    "services/weftd/reallocator/quarantine.py",  # one beat, where the mistake is about one job: else it is raised
    "services/weftd/executor/actions.py",  # one action on one run: the node's other runs depend on this process
    "services/weftd/executor/guard/__main__.py",  # one look: nobody would fence in its place
}

# Written in two parts, so that this file does not hold what it forbids.
REGISTRIES = re.compile(
    "|".join(
        re.escape("".join(parts))
        for parts in (
            ("pypi", ".org"),
            ("pythonhosted", ".org"),
            ("test.", "pypi"),
            ("registry-1.", "docker.io"),
            ("registry.", "npmjs"),
            ("proxy.", "golang.org"),
            ("deb.", "debian.org"),
            ("index-", "url"),
            ("conda.", "anaconda"),
        )
    )
)


def sources(*patterns: str) -> list[Path]:
    found = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    assert found, patterns
    return found


def where(path: Path, node: ast.AST, what: str = "") -> str:
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{name}:{getattr(node, 'lineno', 1)} {what}".strip()


def walk(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def tracked() -> list[Path]:
    """What git has or would take in."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = (ROOT / name for name in listed.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


# thinking is pure


def impurities(path: Path) -> Iterator[str]:
    for node in walk(path):
        match node:
            case ast.Import(names=names):
                yield from (where(path, node, f"imports {name.name}") for name in names if is_impure(name.name))
            case ast.ImportFrom(module=module, names=names, level=level):
                if level or module is None:
                    yield where(path, node, "imports from its folder")
                elif any(is_impure(f"{module}.{name.name}") for name in names):
                    yield where(path, node, f"imports from {module}")
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield where(path, node, "is async")
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield where(path, node, f"calls {name}")
            case ast.Call(func=ast.Attribute(attr=name)) if name in IMPURE_METHODS:
                yield where(path, node, f"calls {name}")
            case ast.Global():
                yield where(path, node, "changes a global")
            case _:
                pass


def is_impure(name: str) -> bool:
    """Whether a module, or a name in one, is of a module that acts. Of a service, all but its `thinking` acts."""
    parts = name.split(".")
    modules = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    if modules & PURE_BESIDE:
        return False
    match parts:
        case ["weft", lib, *_]:
            return lib in IMPURE_LIBS
        case ["weftd", *_]:
            return "thinking" not in parts
        case _:
            return bool(modules & IMPURE_MODULES)


def test_thinking_has_no_clock_no_randomness_and_no_io() -> None:
    assert [line for path in sources(*PURE) for line in impurities(path)] == []


@pytest.mark.parametrize(
    "impure",
    [
        "import time",
        "from random import shuffle",
        "from weft.bus import Bus",
        "from weft.store.postgres import PostgresStore",
        "from weft import bus",
        "from weft.cgroups.files import read_text",
        "from http import client",
        "from weftd.telemetry.host import HostReading",
        "import weftd.executor.actions",
        "from weftd.gateway import app",
        "from . import desk",
        "from .desk import Desk",
        "async def decide(): ...",
        "open('x')",
        "datetime.now(UTC)",
    ],
)
def test_a_core_that_is_not_pure_would_be_seen(tmp_path: Path, impure: str) -> None:
    (tmp_path / "core.py").write_text(impure)
    assert len(list(impurities(tmp_path / "core.py"))) == 1


@pytest.mark.parametrize(
    "pure",
    [
        "from weft.cgroups.counters import Traffic",
        "from weftd.executor.runs import RunKey",
        "from weftd.executor.guard.thinking import Guard",
        "from weftd.telemetry import counters",
    ],
)
def test_a_core_may_import_what_is_pure(tmp_path: Path, pure: str) -> None:
    (tmp_path / "core.py").write_text(pure)
    assert list(impurities(tmp_path / "core.py")) == []


@pytest.mark.parametrize("module", sorted(PURE_BESIDE))
def test_a_module_that_thinking_may_import_does_no_io_itself(module: str) -> None:
    """A Protocol there may have async methods, which it only declares."""
    (path,) = sources(f"*/{module.replace('.', '/')}.py")
    declared = {
        where(path, node, "is async")
        for kind in walk(path)
        if isinstance(kind, ast.ClassDef) and [ast.unparse(base) for base in kind.bases] == ["Protocol"]
        for node in kind.body
        if isinstance(node, ast.AsyncFunctionDef)
    }
    assert [line for line in impurities(path) if line not in declared] == []


# errors


def catches_all(path: Path) -> Iterator[str]:
    """Handlers of every exception that do not raise it again."""
    for node in walk(path):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            goes_on = not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
            if goes_on and any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds):
                yield where(path, node)


def test_only_the_loop_of_a_service_catches_everything() -> None:
    paths = sources("libs/weft/**/*.py", "services/weftd/**/*.py")
    found = [line for path in paths for line in catches_all(path)]
    assert [line for line in found if line.partition(":")[0] not in MAY_CATCH_ALL] == []


# names


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_says_what_it_takes_sends_and_owns(service: str) -> None:
    tree = ast.parse((ROOT / "services/weftd" / service / "__init__.py").read_text())
    words = ast.get_docstring(tree) or ""
    sentence, *rest = words.splitlines()
    assert sentence.endswith((".", ":"))
    found = re.findall(r"^(Takes|Sends|Owns)[: ]", "\n".join(rest), flags=re.MULTILINE)
    assert found == ["Takes", "Sends", "Owns"]
    assert len(tree.body) == 1, "nothing but the docstring"


def test_every_service_is_known_to_these_rules() -> None:
    found = {path.parent.name for path in ROOT.glob("services/weftd/*/__init__.py")}
    assert found == set(SERVICES)


def test_no_module_has_a_name_that_says_nothing() -> None:
    paths = [path.relative_to(ROOT) for path in tracked() if path.suffix == ".py"]
    assert [str(path) for path in paths if {path.stem, *path.parent.parts} & REFUSED_NAMES] == []


def test_a_module_opens_by_saying_what_it_is() -> None:
    paths = [path for path in sources("libs/weft/**/*.py", "services/weftd/**/*.py") if path.read_text()]
    assert [str(path.relative_to(ROOT)) for path in paths if not ast.get_docstring(ast.parse(path.read_text()))] == []


# use


# Defined in the product and called by what is not, such as methods that a library calls by their names.
NOT_CALLED_HERE = {
    *{"collect", "reducer_override", "data_received", "datagram_received", "do_GET", "do_POST", "log_request"},
    *{"connection_requested", "eof_received", "exec_requested", "pty_requested", "session_requested"},
    *{"session_started", "shell_requested", "subsystem_requested", "terminal_size_changed"},  # asyncssh calls these
    *{"readable", "readinto", "seekable", "writable"},  # `io` and `zipfile` call these
    *{"busy_of", "replicas_for", "state_of"},  # for tests that look at what an emulator counted, or a tuner knows
}


def test_what_the_product_defines_it_uses() -> None:
    """A definition that only tests call belongs to the tests. A name counts as used if it is
    anywhere in the product's code.

    Other libraries and programs of users call `weft.integrations`.
    """
    used: set[str] = set()
    defined: dict[str, str] = {}
    for path in sources("libs/weft/**/*.py", "services/weftd/**/*.py"):
        for node in walk(path):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    used.add(name)
                case ast.alias(name=name):
                    used.update(name.split("."))
                case ast.FunctionDef(name=name, decorator_list=[]) | ast.AsyncFunctionDef(name=name, decorator_list=[]):
                    defined[name] = where(path, node, name)
                case ast.ClassDef(name=name):
                    defined[name] = where(path, node, name)
                case _:
                    pass
    known = used | NOT_CALLED_HERE
    defined = {name: place for name, place in defined.items() if not place.startswith("libs/weft/integrations/")}
    assert [place for name, place in defined.items() if name not in known and not name.startswith("_")] == []
    assert {name for name in NOT_CALLED_HERE if name in used or name not in defined} == set()


# messages


def every_message() -> list[type[Message]]:
    return sorted((kind for kind in Message.__subclasses__() if kind.__module__.startswith("weft.")), key=str)


def test_a_message_is_frozen_and_named() -> None:
    for kind in every_message():
        assert kind.__struct_config__.frozen, kind
        info = msgspec.inspect.type_info(kind)
        assert isinstance(info, msgspec.inspect.StructType), kind
        if info.fields:
            with pytest.raises(TypeError, match="positional"):
                kind(*(None for _ in info.fields))


def test_what_crosses_a_boundary_is_frozen_and_named_where_it_is_written() -> None:
    """`kw_only` is not inherited, and type checkers do not see `frozen` inherited: each class says both."""
    found: list[str] = []
    for path in sources("libs/weft/messages/*.py"):
        for node in walk(path):
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & {"Message", "Struct"}:
                said = {word.arg for word in node.keywords if ast.unparse(word.value) == "True"}
                if not said >= {"frozen", "kw_only"}:
                    found.append(where(path, node, node.name))
    assert found == []


def test_a_subject_is_legal_and_filled_from_the_message() -> None:
    for kind in every_message():
        tokens = kind.subject.split(".")
        assert tokens[0] == "weft", kind
        assert len(tokens) >= 2, kind
        for token in tokens:
            assert re.fullmatch(r"[a-z][a-z0-9-]*|\{[a-z_]+\}", token), (kind, token)
        of_subject = {token[1:-1] for token in tokens if token.startswith("{")}
        assert [name for name in sorted(of_subject) if not hasattr(kind, name)] == [], kind


def test_no_two_messages_share_a_subject() -> None:
    subjects = [re.sub(r"\{\w+\}", "*", kind.subject) for kind in every_message()]
    assert len(subjects) == len(set(subjects))
    assert not [subject for subject in subjects if subject.startswith((JOB_SUBJECT, NODE_SUBJECT))]


# tests


SKIPS = {"pytest.skip", "pytest.xfail", "pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}


def excuses(path: Path) -> Iterator[str]:
    """Patches, and skips that do not say why."""
    for node in walk(path):
        match node:
            case ast.Import(names=names):
                imported = {name.name for name in names}
            case ast.ImportFrom(module=module, names=names):
                imported = {f"{module}.{name.name}" for name in names} | {str(module)}
            case ast.Call(func=func, args=args, keywords=keywords) if (called := ast.unparse(func)) in SKIPS:
                imported = set()
                says_why = any(word.arg == "reason" for word in keywords) or (args and ".mark." not in called)
                if not says_why:
                    yield where(path, node, f"{called} without a reason")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                imported = set()
                for decorator in node.decorator_list:
                    if ast.unparse(decorator) in SKIPS:
                        yield where(path, node, f"{ast.unparse(decorator)} without a reason")
            case _:
                continue
        if any(module == "mock" or module.startswith(("mock.", "unittest.mock")) for module in imported):
            yield where(path, node, "imports mock")


@pytest.mark.parametrize(
    "excuse",
    [
        "from unittest.mock import patch",
        "from unittest import mock",
        "import unittest.mock",
        "pytest.skip()",
        "@pytest.mark.skip\ndef test(): ...",
        "@pytest.mark.skipif(True)\ndef test(): ...",
        "@pytest.mark.xfail(strict=True)\ndef test(): ...",
    ],
)
def test_an_excuse_would_be_seen(tmp_path: Path, excuse: str) -> None:
    (tmp_path / "test_it.py").write_text(excuse)
    assert len(list(excuses(tmp_path / "test_it.py"))) == 1


def test_no_test_patches_or_skips_without_a_reason() -> None:
    assert [line for path in sources("tests/**/*.py") for line in excuses(path)] == []


# the tree


def test_no_file_names_a_package_registry() -> None:
    found: list[str] = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if REGISTRIES.search(line)
        ]
    assert found == []


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("deploy/requirements.lock", ("cluster", "data")),
        ("embedded.lock", ("cluster", "embedded", "build")),
        ("sharing.lock", ("sharing",)),
    ],
)
def test_what_is_installed_without_tools_has_a_lock_of_its_own(lock: str, extras: tuple[str, ...]) -> None:
    """The image, and `make demo`: every dependency is in the lock, in the version that is tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [one for extra in extras for one in project["optional-dependencies"][extra]]
    wanted += project["dependencies"] if "cluster" in extras else []
    needed = {re.split(r"[<>=;]", one)[0].lower() for one in wanted if not one.startswith(project["name"])}
    tested, locked = (
        set(re.findall(r"^([\w.-]+==\S+)", (ROOT / path).read_text(), re.MULTILINE))
        for path in ("requirements.lock", lock)
    )
    assert locked <= tested
    assert needed <= {entry.partition("==")[0].lower() for entry in locked}
