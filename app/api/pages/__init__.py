"""The page: HTML for people. Everything it shows, the API says too."""

from fastapi import APIRouter

from app.api.pages import fleet, model, reference, sign_in, static

router = APIRouter()
for part in (fleet, model, reference, sign_in, static):
    router.include_router(part.router)
