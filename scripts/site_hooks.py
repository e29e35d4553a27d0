"""What MkDocs asks while it makes the site of docs/: `mkdocs.yml` names this file.

Pages in docs/ link to files of the repository, and those back to pages in docs/, as GitHub follows
links. On the site, reports and the other pages of `MOUNTED` stand below `project/`, in the folders
of the repository; what is no page is read there. A link that leads nowhere stays as it is, and
MkDocs warns of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
MOUNT = "project"
# Pages outside docs/, and what they show.
MOUNTED = ("*.md", "datasets/*.md", "reports/*.md", "reports/demo/*")

_FENCE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.S | re.M)
_TARGET = re.compile(r"(?<=\]\()(?P<path>[^)\s:#]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside docs/."""
    for path in sorted(path for pattern in MOUNTED for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"{MOUNT}/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn each relative link into one that leads there on the site; code only shows some."""
    here = page.file.src_uri
    mounted = here.startswith(f"{MOUNT}/")
    stands = here.removeprefix(f"{MOUNT}/") if mounted else f"{DOCS}/{here}"

    def turned(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(stands), found["path"]))
        if not (ROOT / path).exists():
            return found["path"]
        for uri in (path.removeprefix(f"{DOCS}/"), f"{MOUNT}/{path}"):
            if uri != path and files.get_file_from_path(uri):
                return posixpath.relpath(uri, posixpath.dirname(here))
        return f"{config.repo_url}/blob/main/{path}"

    parts: list[str] = []
    end = 0
    for code in _FENCE.finditer(markdown):
        parts += [_TARGET.sub(turned, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _TARGET.sub(turned, markdown[end:])])
