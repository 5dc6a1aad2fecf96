"""A program that dies with its parent: `python -m server.engine_process.tied PARENT PROGRAM [ARGUMENT …]`.

For programs that are not ours and so cannot ask the kernel for it themselves; what is asked for survives the `exec`
(prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import sys

from server.engine_process.child import die_with


def main(arguments: list[str]) -> None:
    """Becomes the program."""
    parent, program, *rest = arguments
    die_with(int(parent))
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
