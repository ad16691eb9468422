"""Shiftwatch's default estimate beside those of other tools, on the same draws in one run.

`make peers` (or `python -m bench.peers`) measures; docs/peers.md says what and how.
"""

# First of all, as it keeps NumPy to one thread a process.
import app as app
