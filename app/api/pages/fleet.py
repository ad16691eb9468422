"""The first page: all models."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api.deps import Conn, Now
from app.api.pages.base import Looking, PageRoute, Search, shown
from app.storage import fleet
from app.storage.fleet import Order
from app.web import fleet as web

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PER_PAGE = 50


@router.get("/")
def get_fleet(
    visitor: Looking,
    conn: Conn,
    now: Now,
    search: Annotated[Search, Query(alias="q", max_length=100)] = "",
    order: Annotated[Order, Query(alias="sort")] = Order.TROUBLE,
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    names, total = fleet.page(conn, search.strip(), order, PER_PAGE, PER_PAGE * (number - 1))
    found = fleet.read(conn, now, names)
    rows = web.rows(names, found.versions, fleet.traffic(conn, names, now), now)
    return shown(
        "fleet.html",
        visitor,
        rows=rows,
        total=total,
        models=len(found.models),
        search=search,
        order=order,
        orders=list(Order),
        number=number,
        pages=-(-total // PER_PAGE),
        now=now,
    )
