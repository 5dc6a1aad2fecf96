"""`python -m keyglance` is the `keyglance` command."""

from keyglance.cli import main

if __name__ == "__main__":
    main()
