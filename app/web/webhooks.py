"""Webhooks and keys: what a form says when it is back."""

DONE = {
    "tried": "A test is on its way; what becomes of it is listed below.",
    "disabled": "Disabled: it is sent nothing until it is enabled again.",
    "enabled": "Enabled: what was pending when it was disabled is sent now.",
    "deleted": "Deleted, with its deliveries.",
    "replayed": "It is sent again, under its old message id.",
}
