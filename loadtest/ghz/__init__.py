"""Load tests with ghz: its own configuration files, the requests they send, and thresholds for `loadtest.gate`.

Each file is one load and can be given to ghz as it is, from the repository's root, once `python -m loadtest.ghz --requests`
has written what it sends: `ghz --config loadtest/ghz/unary-8.json 127.0.0.1:50051`.
"""
