"""Builds the documentation site: `make docs`, or `python -m tests.support.site`.

MkDocs reads `mkdocs.yml` and calls the hooks here (`on_…`). docs/README.md is the index and gives the navigation: a
second-level heading is a section, and each line of its list a page. The pages of the repository's root and the examples
are part of the site, too. Links to any other file of the repository become its path in plain text.

The archive holds each file compressed by gzip, as the gateway sends it. Everything that the pages load is in it.
"""

import argparse
import gzip
import posixpath
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft.version import version

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "services/weftd/gateway/documentation.zip"
INDEX = "README.md"
FROM_ROOT = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS = ("decisions", "measurements")
SERVED = (".html", ".css", ".js", ".json", ".svg", ".png", ".py", ".ipynb", ".txt")
NOT_SERVED = re.compile(r"404\.html|.*/lunr/.*")  # the stemmers of other languages than English
_TEXT_OF_LINK = re.compile(r"\[([^\[\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def navigation(index: str) -> list[dict[str, Any]]:
    """The sections of the index with their pages."""
    sections: list[dict[str, Any]] = []
    for title, pages in _sections(index):
        listed: list[Any] = []
        for page in pages:
            folder = page.partition("/")[0]
            if folder in FOLDERS:
                names = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md") if path.name != INDEX)
                listed.append({folder.title(): [f"{folder}/{name}" for name in (INDEX, *names)]})
            else:
                listed.append(page)
        sections.append({title: listed})
    return [{"Home": INDEX}, *sections]


def _sections(index: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        items = re.findall(r"^- (.+)$", part, flags=re.MULTILINE)
        pages = [target for item in items for _, target, _ in _TEXT_OF_LINK.findall(item) if target.endswith(".md")]
        if pages:
            yield part.partition("\n")[0], list(dict.fromkeys(page.removeprefix("../") for page in pages))


def linked(text: str, place: str) -> str:
    """The text of a page with each link as the site needs it. `place`: the page's path in the repository."""

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if not (ROOT / path).exists():
            raise ValueError(f"{place} links to {path}, which does not exist")
        page = in_site(path)
        if page is None:
            return f"{words} (`{path}`)" if path not in words else words
        here = posixpath.dirname(in_site(place) or "")
        return f"[{words}]({posixpath.relpath(page, here or '.')}{anchor})"

    parts = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else _TEXT_OF_LINK.sub(link, part) for number, part in enumerate(parts))


def in_site(path: str) -> str | None:
    """The place of a file of the repository in the site, or None if it is not part of it."""
    if path.startswith("docs/"):
        path = path.removeprefix("docs/")
        return f"{path}/{INDEX}" if path in FOLDERS else path
    if path == "README.md":
        return INDEX
    return path if path in FROM_ROOT or (path.startswith("examples/") and "." in path) else None


# hooks of MkDocs


def on_config(config: Any) -> Any:
    config.nav = navigation((ROOT / "docs" / INDEX).read_text())
    config.copyright = f"Weft {version()} · {config.copyright}"
    config.site_name = f"{config.site_name} {version()}"
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    examples = sorted(f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.suffix in SERVED)
    for name in (*FROM_ROOT, *examples):
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    path = page.file.src_uri
    return linked(markdown, path if path in FROM_ROOT else f"docs/{path}")


# the archive


def build(archive: Path) -> None:
    """Build the site and write its archive. Raises CalledProcessError if a page or a link is broken."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        subprocess.run([*command, "--config-file", str(ROOT / "mkdocs.yml")], check=True, cwd=ROOT)
        pack(Path(folder), archive)


def pack(folder: Path, archive: Path) -> None:
    """Write the files that the pages need as one archive, the same bytes for the same files."""
    part = archive.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as made:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name.endswith(SERVED) and not NOT_SERVED.fullmatch(name):
                made.writestr(zipfile.ZipInfo(name), gzip.compress(path.read_bytes(), mtime=0))
    part.replace(archive)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.site", description="build the documentation site")
    parser.add_argument("--archive", type=Path, default=ARCHIVE, help="file to write (default: the gateway's)")
    archive = parser.parse_args().archive
    build(archive)
    sys.stdout.write(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
