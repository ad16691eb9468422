"""The page: HTML for people. Everything it shows, the API says too."""

from fastapi import APIRouter

from app.api.pages import alarms, fleet, keys, model, reference, sign_in, static, webhooks
from app.api.pages.base import install

__all__ = ["install", "router"]

router = APIRouter()
for part in (fleet, model, reference, alarms, webhooks, keys, sign_in, static):
    router.include_router(part.router)
