"""`shiftwatch demo`: the service on a database of its own, real traffic and somebody to be told."""
