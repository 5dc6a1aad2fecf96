"""The figures of README and docs as text, each from a file of loadtest/results; `scripts/readme_figures.py` writes them."""
