"""The benchmarks that `scripts/bench.py` runs: each module adds its `options` to a parser and can `run` with them."""
