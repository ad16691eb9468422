"""The paper's experiments on real classifier outputs, and where the service goes beyond them.

`python -m bench.paper` (or `make paper`) runs them all; docs/paper.md says what they show.
"""

# First of all, as it keeps NumPy to one thread a process: two processes share the work instead.
import app as app
