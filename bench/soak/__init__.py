"""The whole service under load while its parts are killed: `python -m bench.soak`."""
