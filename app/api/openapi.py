"""What FastAPI cannot see for itself: bodies with parsers of their own, and problem details."""

from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel


class FlawView(BaseModel):
    """One thing that is wrong; `pointer` is a JSON Pointer into the body."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class ProblemView(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FlawView] | None = None


_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemView"}}}

PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "the request cannot be served as it is", "content": _PROBLEM},
    "503": {
        "description": "not now; nothing was stored",
        "headers": {"Retry-After": {"schema": {"type": "integer"}}},
        "content": _PROBLEM,
    },
}


def install(app: FastAPI) -> None:
    """Describe errors as they are: problem details, not FastAPI's own validation errors."""
    made_by_fastapi = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            _describe_problems(made_by_fastapi())
        return app.openapi_schema or {}

    # The way that FastAPI's documentation gives to change what it made.
    app.openapi = described  # type: ignore[method-assign]


def _describe_problems(schema: dict[str, Any]) -> None:
    components = schema["components"]["schemas"]
    for own in ("HTTPValidationError", "ValidationError"):
        components.pop(own, None)
    problem = ProblemView.model_json_schema(ref_template="#/components/schemas/{model}")
    components |= problem.pop("$defs") | {"ProblemView": problem}
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)


def body_of(types: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    """The OpenAPI of a route that reads its body itself."""
    content = {
        media: {"schema": type_ if isinstance(type_, dict) else schema_of(type_)}
        for media, type_ in types.items()
    }
    return {"requestBody": {"required": required, "content": content}}


def schema_of(type_: Any) -> dict[str, Any]:
    """The JSON schema of a msgspec struct or a pydantic model, with what it refers to inside it."""
    if issubclass(type_, BaseModel):
        schema = type_.model_json_schema(ref_template="#/$defs/{model}")
        whole: Any = {name: part for name, part in schema.items() if name != "$defs"}
    else:
        schema = msgspec.json.schema(type_, ref_template="#/$defs/{name}")
        whole = {"$ref": schema["$ref"]}
    found: dict[str, Any] = _inlined(whole, schema.get("$defs", {}))
    return found


def _inlined(value: Any, parts: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(part, parts) for part in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _inlined(parts[value["$ref"].rsplit("/", 1)[1]], parts)
    return {name: _inlined(part, parts) for name, part in value.items()}
