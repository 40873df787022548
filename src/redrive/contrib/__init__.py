"""Integrations with web frameworks: `django` (tasks) and `starlette` (a worker inside FastAPI or Starlette).

Each module imports its framework; no other module of redrive does.
"""
