"""A request on the hot path: what is looked up in it again and again is found out once."""

from functools import cached_property

from fastapi import Request
from starlette.datastructures import QueryParams

_NONE = QueryParams()


class HotRequest(Request):
    """Starlette searches all headers for each one that is asked for, and parses queries of nothing;
    together that takes longer than counting the predictions."""

    @cached_property
    def headers(self) -> dict[str, str]:  # type: ignore[override]
        # Backwards, so that the first of a name stands, as Starlette has it.
        return {
            str(name, "latin-1"): str(value, "latin-1")
            for name, value in reversed(self.scope["headers"])
        }

    @property
    def query_params(self) -> QueryParams:
        return super().query_params if self.scope["query_string"] else _NONE

    @property
    def cookies(self) -> dict[str, str]:
        return Request(self.scope).cookies
