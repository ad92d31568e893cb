"""Fetches xterm.js, the terminal of the dashboard, into the package before it is built: `make terminal`.

It comes from npm's registry by npm itself, pinned by version and hash, and is changed in two places so that it works
under the dashboard's Content-Security-Policy, which allows no inline style: style elements become constructed style
sheets, style attributes are set through the CSS object model. docs/decisions/0029-xterm-at-build-time.md has the
reasons. Without it the dashboard works, and its job page names `weft shell`.

    python3 deploy/terminal.py [--package FILE]     # FILE: the package's .tgz, where there is no network
"""

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@xterm/xterm@6.0.0"
SHA512 = "TQwDdQGtwwDt+2cgKDLn0IRaSxYu1tSUjgKarSDkUM0ZNiSRXFpjxEsvc/Zgc5kq5omJ+V0a8/kIM2WD3sMOYg=="
TARGET = Path(__file__).parents[1] / "services/weftd/gateway/face/xterm"
FILES = {"package/lib/xterm.mjs": "xterm.js", "package/css/xterm.css": "xterm.css", "package/LICENSE": "LICENSE.md"}
FILE_BYTES_MAX = 4 << 20
SECONDS_MAX = 120

STYLE_ELEMENT = re.compile(r'([\w.]+)\.createElement\("style"\)')
STYLE_ATTRIBUTE = re.compile(r'(\w+)\.setAttribute\("style",`\$\{\1\.getAttribute\("style"\)\|\|""\}\$\{(\w+)\};`\)')
UNLAWFUL = ('createElement("style")', 'setAttribute("style"', "eval(", "new Function(")
SOURCE_MAP = re.compile(r"\n//# sourceMappingURL=\S+\s*$")
SHEETS = """/* Changed by Weft's deploy/terminal.py, for a policy without inline styles. */
function weftStyle(from) {
  const element = from.createElement("span");
  const sheet = new CSSStyleSheet();
  const remove = element.remove;
  element.hidden = true;
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
  element.remove = () => {
    from.adoptedStyleSheets = from.adoptedStyleSheets.filter((other) => other !== sheet);
    remove.call(element);
  };
  from.adoptedStyleSheets = [...from.adoptedStyleSheets, sheet];
  return element;
}
"""


class TerminalError(Exception):
    """Why there is no terminal, as a sentence."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch xterm.js into the dashboard.")
    parser.add_argument("--package", type=Path, metavar="FILE", help="the package's .tgz (default: ask npm for it)")
    given = parser.parse_args().package
    try:
        with tempfile.TemporaryDirectory() as folder:
            install((given or fetched(Path(folder))).read_bytes(), TARGET)
    except (TerminalError, OSError, tarfile.TarError) as error:
        sys.stderr.write(f"terminal: {error}\n")
        return 1
    return 0


def fetched(folder: Path) -> Path:
    """The package as npm gives it. Raises TerminalError."""
    try:
        command = ["npm", "pack", PACKAGE, "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS_MAX)
    except FileNotFoundError:
        raise TerminalError("npm is not there; name the package's file with --package") from None
    except subprocess.TimeoutExpired:
        raise TerminalError(f"npm did not fetch {PACKAGE} within {SECONDS_MAX} s") from None
    except subprocess.CalledProcessError as error:
        raise TerminalError(f"npm does not fetch {PACKAGE}: {error.stderr.strip()[-500:]}") from None
    (found,) = folder.glob("*.tgz")
    return found


def install(package: bytes, target: Path, *, sha512: str = SHA512) -> None:
    """Put its module, its style sheet and its licence into a folder. Raises TerminalError, OSError, TarError."""
    digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if digest != sha512:
        raise TerminalError(f"{PACKAGE} has the hash {digest}, expected {sha512}")
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryFile() as file:
        file.write(package)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            for name in FILES:
                member = archive.extractfile(name)
                if member is None:
                    raise TerminalError(f"{PACKAGE} has no {name}")
                contents[name] = member.read(FILE_BYTES_MAX)
    module = changed(contents["package/lib/xterm.mjs"].decode())
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (target / FILES[name]).write_bytes(module.encode() if name.endswith(".mjs") else content)


def changed(module: str) -> str:
    """The module for a policy without inline styles. Raises TerminalError if it is not as it was when this was made."""
    module, elements = STYLE_ELEMENT.subn(r"weftStyle(\1)", module)
    module, attributes = STYLE_ATTRIBUTE.subn(r"(\1.style.cssText+=`;${\2};`)", module)
    left = [word for word in UNLAWFUL if word in module]
    if not elements or not attributes or left:
        raise TerminalError(f"{elements} style elements and {attributes} style attributes were found; left: {left}")
    return SHEETS + SOURCE_MAP.sub("\n", module)


if __name__ == "__main__":
    sys.exit(main())
