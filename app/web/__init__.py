"""The page: what people are shown, in words, tables and charts; routes are in `app.api.pages`."""
