"""Verb: turn a batch of predictions into pane sums and record them once."""
