"""Verb: claim a due model, judge its windows, step its alarms, queue notices."""
