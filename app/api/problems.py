"""What each kind of problem means, where its `type` points to."""

from fastapi import APIRouter
from pydantic import BaseModel

from app.api.errors import PROBLEMS
from app.errors import NotFound

router = APIRouter(prefix="/problems", tags=["problems"])


class ProblemMeaning(BaseModel):
    type: str
    title: str
    status: int
    meaning: str


@router.get("/{slug}")
async def explain(slug: str) -> ProblemMeaning:
    for problem in PROBLEMS.values():
        if problem.slug == slug:
            return ProblemMeaning(
                type=f"/problems/{slug}",
                title=problem.title,
                status=problem.status,
                meaning=problem.meaning,
            )
    raise NotFound(f"there is no kind of problem {slug!r}")
