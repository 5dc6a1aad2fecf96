"""Writes the figures of README and docs from loadtest/results, between `<!-- figures:NAME -->` and `<!-- /figures -->`.

With --check nothing is written, and the exit code is 1 where a page would change. Edit `loadtest/figures`, never the pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest import report
from loadtest.figures.pages import PAGES, PageError, blocks, filled
from loadtest.figures.results import Results

ROOT = Path(__file__).parent.parent


def stale(root: Path, results: Path) -> dict[str, str]:
    """The pages that are not as the results have it, by path below `root`, each as it should be."""
    made = blocks(Results(results))
    texts = {page: (root / page).read_text() for page in PAGES}
    return {page: new for page, text in texts.items() if (new := filled(text, made, page)) != text}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, say which pages would change")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout with the pages")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder of results")
    options = parser.parse_args(arguments)
    try:
        changed = stale(options.root, options.results)
    except (PageError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for page, text in changed.items():
        if options.check:
            print(f"{page} is not as the results have it: run `python scripts/readme_figures.py` and commit it", file=sys.stderr)
        else:
            (options.root / page).write_text(text)
            print(page)
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
