"""xterm.js as it is put into the dashboard: what its hash says, and without a style that the policy forbids."""

import base64
import hashlib
import importlib.util
import io
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MODULE = (
    'a.b=n.mainDocument.createElement("style"),c.appendChild(a.b);this._document.createElement("style");'
    '_addStyle(t,e){t.setAttribute("style",`${t.getAttribute("style")||""}${e};`)}export{D as Terminal};\n'
    "//# sourceMappingURL=xterm.mjs.map\n"
)


@pytest.fixture(scope="module")
def terminal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("terminal", ROOT / "deploy/terminal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def sha512(data: bytes) -> str:
    return base64.b64encode(hashlib.sha512(data).digest()).decode()


def test_styles_go_by_the_object_model_and_nothing_names_the_source_map(terminal: ModuleType) -> None:
    made = terminal.changed(MODULE)
    assert "a.b=weftStyle(n.mainDocument),c.appendChild(a.b);weftStyle(this._document);" in made
    assert "_addStyle(t,e){(t.style.cssText+=`;${e};`)}" in made
    assert "sourceMappingURL" not in made


@pytest.mark.parametrize(
    "module",
    [
        "export{}",
        MODULE.replace('setAttribute("style",`', 'setAttribute("style", `'),
        MODULE + "eval(x)",
        MODULE.replace("this._document.create", "(x)().create"),
    ],
)
def test_a_module_that_is_not_as_it_was_is_refused(terminal: ModuleType, module: str) -> None:
    with pytest.raises(terminal.TerminalError, match="were found; left"):
        terminal.changed(module)


def test_the_package_is_held_to_its_hash_and_brings_its_licence(terminal: ModuleType, tmp_path: Path) -> None:
    package = packed(**{"lib/xterm.mjs": MODULE, "css/xterm.css": "a{}", "LICENSE": "MIT", "other": "x"})
    with pytest.raises(terminal.TerminalError, match="has the hash"):
        terminal.install(package, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    terminal.install(package, tmp_path / "xterm", sha512=sha512(package))
    assert sorted(path.name for path in (tmp_path / "xterm").iterdir()) == ["LICENSE.md", "xterm.css", "xterm.js"]
    assert (tmp_path / "xterm/LICENSE.md").read_text() == "MIT"
