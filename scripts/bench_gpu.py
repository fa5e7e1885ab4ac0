"""Measures what reaches a GPU: `bench.py gpu`, under the name by which other programs call it."""

import sys

import bench

if __name__ == "__main__":
    sys.exit(bench.main(["gpu", *sys.argv[1:]]))
