"""Lints the API with buf and compares it with the API before: no caller of version 1 may be broken.

The API before is where this branch left main; on main itself it is the version before the last change to protos/.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUF = ROOT / "node_modules" / ".bin" / "buf"


def git(*arguments: str) -> str | None:
    """Git's answer, None where it failed or has nothing to say."""
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def base() -> str | None:
    """The commit with the API before, None where there is none (a first version, a shallow clone, no Git)."""
    head = git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        fork = git("merge-base", "HEAD", main)
        if fork is not None and fork != head:
            return fork
    change = git("log", "-1", "--format=%H", "--", "protos")
    return git("rev-parse", "--verify", "--quiet", f"{change}^") if change else None


def main() -> int:
    """Runs both checks; the exit code is 0 where both are content."""
    if not BUF.exists():
        print("buf is not installed: run `npm ci` (Node.js) first, or `make api`", file=sys.stderr)
        return 2
    status = subprocess.run([BUF, "lint", "protos"], cwd=ROOT, check=False).returncode
    before = base()
    if before is None or not git("ls-tree", before, "protos/"):
        print("buf breaking: skipped, this history holds no earlier version of the API")
        return status
    print(f"buf breaking: compared with {before[:12]}")
    against = f".git#ref={before},subdir=protos"
    return status or subprocess.run([BUF, "breaking", "protos", "--against", against], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
