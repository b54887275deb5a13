"""Looks for what is broken in the built guide: `python3 docs/guide/check.py target/guide`.

- each link to a page, an anchor or a file of the book leads there;
- each link to a file of this repository, by its address on the main branch, names one that is in this working tree, and an anchor that it has;
- each page is in SUMMARY.md, has a picture where it includes one, and is run if it has Rust: as doctests (src/lib.rs), or as a program (tests/start).

It asks nothing of any network. Links to other sites are counted, and not followed.
"""

import pathlib
import re
import sys
import urllib.parse
from html.parser import HTMLParser

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "docs" / "guide" / "src"
OURS = re.compile(r"https://github\.com/pinfeed/pinfeed/(?:blob|tree)/main/(.*)")
# What mdBook's own pages have that is ours nowhere: the button that edits a page, whose address is checked by its path.
EDIT = "https://github.com/pinfeed/pinfeed/edit/main/"


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(filter(None, [attributes.get("id"), attributes.get("name") if tag == "a" else None]))
        self.links.extend(filter(None, [attributes.get("href"), attributes.get("src")]))


def slugs(path):
    """The anchors that GitHub gives the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        again = 0
        while f"{slug}-{again}" * bool(again) + slug * (not again) in found:
            again += 1
        found.add(f"{slug}-{again}" if again else slug)
    return found


def wrong_in_repository(link):
    """What is wrong with a link to a file of this repository, or `None`."""
    path, _, anchor = OURS.fullmatch(link)[1].partition("#")
    file = ROOT / urllib.parse.unquote(path)
    if not file.exists():
        return "there is no such file"
    if anchor and (file.suffix != ".md" or anchor not in slugs(file)):
        return "there is no such heading"
    return None


def wrong_links(book):
    pages = {path.resolve(): Page(path) for path in sorted(book.rglob("*.html"))}
    outside, checked, wrong = set(), 0, []
    for path, page in pages.items():
        for link in page.links:
            where = f"{path.relative_to(book.resolve())}: {link}"
            if OURS.fullmatch(link):
                problem = wrong_in_repository(link)
                wrong += [f"{where}: {problem}"] if problem else []
            elif link.startswith(EDIT):
                wrong += [] if (ROOT / link.removeprefix(EDIT)).exists() else [f"{where}: there is no such file"]
            elif re.match(r"[a-z]+:", link):
                outside.add(link)
                continue
            else:
                target, _, anchor = link.partition("#")
                target = urllib.parse.unquote(target.partition("?")[0])
                file = (path.parent / target).resolve() if target else path
                if not file.is_file():
                    wrong.append(f"{where}: there is no such file")
                elif anchor and file in pages and urllib.parse.unquote(anchor) not in pages[file].anchors:
                    wrong.append(f"{where}: there is no such anchor")
            checked += 1
    return len(pages), checked, len(outside), wrong


def wrong_sources():
    wrong = []
    summary = (SOURCES / "SUMMARY.md").read_text()
    doctests = (ROOT / "src" / "lib.rs").read_text()
    programs = (ROOT / "tests" / "start" / "main.rs").read_text()
    for path in sorted(SOURCES.rglob("*.md")):
        name, text = str(path.relative_to(SOURCES)), path.read_text()
        if name != "SUMMARY.md" and f"({name})" not in summary:
            wrong.append(f"{name}: it is not in SUMMARY.md")
        is_run = f'"{name}"' in doctests or f'docs/guide/src/{name}"' in programs
        if re.search(r"^```rust", text, re.MULTILINE) and not is_run:
            wrong.append(f"{name}: it has Rust, and is neither among the doctests of src/lib.rs nor among the programs of tests/start")
        for included in re.findall(r"\{\{#include ([^}:]+)", text):
            if not (path.parent / included.strip()).is_file():
                wrong.append(f"{name}: it includes {included}, which is not there")
    return wrong


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        print("usage: python3 docs/guide/check.py FOLDER-OF-THE-BUILT-BOOK", file=sys.stderr)
        return 2
    pages, checked, outside, wrong = wrong_links(pathlib.Path(sys.argv[1]))
    wrong += wrong_sources()
    print("\n".join(wrong))
    print(f"note: {pages} pages, {checked} links that lead within the project, {outside} addresses elsewhere that were not followed")
    if not pages or wrong:
        print(f"error: {len(wrong)} things are broken", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
